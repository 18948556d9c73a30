"""`python -m gc_assets` runs the command line `gc-assets`."""

from gc_assets.cli.main import main

if __name__ == "__main__":
    main()
