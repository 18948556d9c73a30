from threading import Barrier

from tests.debian import Unavailable
from tests.lakes.nessie import server as nessie
from tests.servers import fetch_all


def test_servers_are_downloaded_concurrently() -> None:
    together = Barrier(3)
    assert fetch_all([lambda: together.wait(30)] * 3) == []


def test_every_unavailable_server_is_reported() -> None:
    def fail(error: Exception) -> None:
        raise error

    fetches = [lambda: fail(Unavailable("no apt-get")), lambda: None, lambda: fail(nessie.Unavailable("no mvn"))]
    assert fetch_all(fetches) == ["no apt-get", "no mvn"]
