"""`python -m gc_assets` is `gc-assets`."""

from gc_assets.cli.main import main

if __name__ == "__main__":
    main()
