"""The contract of stores, on a local folder, an S3 server, and fsspec's memory where that can do it; in `-m nightly`
also on Azurite, and on a double of Google Cloud Storage."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tasks.core import storage_traffic
from tasks.core.plan import File
from tasks.errors import DataError, GiveUpError, JobError, RowmillError, TransientError
from tasks.storage import local_store, store_process
from tasks.storage.ranges import InFlight, join_ranges
from tasks.storage.store import ConflictError, MissingFileError, Store
from tasks.storage.stores import list_files, open_store
from tests.object_store import fail_next, fail_share

numbers = itertools.count()


class Place:
    """A store, a folder of its own in it, and a way to put files there past it."""

    def __init__(self, root: str, options: dict[str, Any], fill: Callable[[str, bytes], object]) -> None:
        self.root = root
        self.store: Store = open_store(root, options)
        self._fill = fill

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def fill(self, name: str, content: bytes = b"x") -> str:
        self._fill(name, content)
        return self.path(name)

    def names(self, folder: str = "") -> list[str]:
        pages = self.store.list_pages(self.path(folder) if folder else self.root)
        return sorted(file.path.removeprefix(f"{self.root}/") for page in pages for file in page)


def local_place(folder: Path) -> Place:
    def fill(name: str, content: bytes) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return Place(str(folder), {}, fill)


def memory_place() -> Place:
    root = f"/stores/{next(numbers)}"
    return Place(
        f"memory://{root}", {}, lambda name, content: fsspec.filesystem("memory").pipe(f"{root}/{name}", content)
    )


def place_of(scheme: str, server: Any) -> Place:
    folder = f"stores/{next(numbers)}"
    root = f"{scheme}://shop/{folder}"
    return Place(root, server.options, lambda name, content: server.put(f"{folder}/{name}", content))


def s3_place(server: Any) -> Place:
    return place_of("s3", server)


SERVERS = {"s3": "object_store", "abfs": "azure_store", "gs": "gcs_double"}
S3 = pytest.param("s3", marks=pytest.mark.system)
CLOUDS = [S3, *(pytest.param(scheme, marks=pytest.mark.nightly) for scheme in ("abfs", "gs"))]


@pytest.fixture(params=["local", *CLOUDS, "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param in SERVERS:
        return place_of(request.param, request.getfixturevalue(SERVERS[request.param]))
    return memory_place() if request.param == "memory" else local_place(tmp_path)


@pytest.fixture(params=["local", *CLOUDS])
def writable(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param in SERVERS:
        return place_of(request.param, request.getfixturevalue(SERVERS[request.param]))
    return local_place(tmp_path)


def test_all_files_below_a_folder_are_listed(place: Place) -> None:
    for name in ("a.csv", "day=1/b.csv", "day=1/deep/ü #?+%2e.csv", "day=10/c.csv"):
        place.fill(name, name.encode())
    assert place.names() == ["a.csv", "day=1/b.csv", "day=1/deep/ü #?+%2e.csv", "day=10/c.csv"]
    assert place.names("day=1") == ["day=1/b.csv", "day=1/deep/ü #?+%2e.csv"]
    assert place.names("day") == []
    assert place.names("none") == []
    sizes = {file.path: file.size for page in place.store.list_pages(place.root) for file in page}
    assert sizes[place.path("day=1/deep/ü #?+%2e.csv")] == 24


def test_pages_have_a_thousand_files_at_most(place: Place) -> None:
    for number in range(2_050):
        place.fill(f"{number:04}")
    assert sorted(len(page) for page in place.store.list_pages(place.root)) == [50, 1_000, 1_000]


def test_a_file_is_described(place: Place) -> None:
    path = place.fill("a.csv", b"12345")
    file = place.store.stat(path)
    assert (file.path, file.size) == (path, 5)
    with pytest.raises(MissingFileError, match="a file is missing"):
        place.store.stat(place.path("b.csv"))
    place.fill("folder/a.csv")
    with pytest.raises(MissingFileError):
        place.store.stat(place.path("folder"))


def test_ranges_are_those_that_are_asked_for(place: Place) -> None:
    path = place.fill("a.bin", bytes(range(256)))
    file = place.store.stat(path)
    parts = place.store.read_ranges(file, [(200, 300), (0, 2), (2, 4), (10, 10), (300, 400)])
    assert [bytes(part) for part in parts] == [bytes(range(200, 256)), b"\0\1", b"\2\3", b"", b""]
    assert place.store.read_ranges(file, []) == []
    assert place.store.read(path) == (file, bytes(range(256)))


def test_a_listing_names_the_version_that_a_look_at_the_file_names(place: Place) -> None:
    path = place.fill("deep/a.bin", b"12345")
    (listed,) = [file for page in place.store.list_pages(place.root) for file in page]
    (also_listed,) = place.store.list_folder(place.path("deep"))[0]
    assert listed.version == also_listed.version == place.store.stat(path).version
    assert [bytes(part) for part in place.store.read_ranges(listed, [(1, 3)])] == [b"23"]
    with place.store.open(path, listed) as file:
        assert file.read() == b"12345"


def test_a_version_of_a_listing_is_the_condition_of_a_put(writable: Place) -> None:
    path = writable.fill("pointer", b"1")
    (listed,) = [file for page in writable.store.list_pages(writable.root) for file in page]
    second = writable.store.put_if_unchanged(path, b"2", listed.version)
    with pytest.raises(ConflictError):
        writable.store.put_if_unchanged(path, b"3", listed.version)
    third = writable.store.put_if_unchanged(path, b"3", second.version)
    assert writable.store.stat(path).version == third.version


@pytest.mark.nightly
@pytest.mark.parametrize(
    "url", ["az://shop", "abfs://shop", "abfss://shop@devstoreaccount1.dfs.core.windows.net", "azure://shop"]
)
def test_azure_under_each_of_its_urls(azure_store: Any, url: str) -> None:
    folder = f"stores/{next(numbers)}"
    azure_store.put(f"{folder}/a.csv", b"12345")
    options = {name: value for name, value in azure_store.options.items() if "@" not in url or name != "account_name"}
    store = open_store(url, options)
    (listed,) = [file for page in store.list_pages(f"{url}/{folder}") for file in page]
    assert (listed.path, listed.size) == (f"{url}/{folder}/a.csv", 5)
    assert bytes(store.read_ranges(listed, [(0, 9)])[0]) == b"12345"
    with pytest.raises(ConflictError):
        store.put_if_absent(f"{url}/{folder}/a.csv", b"2")


def test_a_file_that_changed_is_not_read(place: Place) -> None:
    path = place.fill("a.bin", b"old..")
    file = place.store.stat(path)
    place.fill("a.bin", b"newer.")
    with pytest.raises(DataError, match="changed during the run") as error:
        place.store.read_ranges(file, [(0, 3)])
    assert error.value.where == path


def test_a_file_is_created_once(place: Place) -> None:
    path = place.path("new/lock")
    made = place.store.put_if_absent(path, b"mine")
    assert (made.path, made.size) == (path, 4)
    with pytest.raises(ConflictError, match="another writer was faster"):
        place.store.put_if_absent(path, b"theirs")
    assert place.store.put_if_absent(path, b"mine").size == 4
    assert place.names() == ["new/lock"]


def test_of_many_writers_one_creates(writable: Place) -> None:
    def create(number: int) -> bool:
        try:
            writable.store.put_if_absent(writable.path("lock"), f"owner {number}".encode())
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(create, range(8))) == 1


def test_a_file_is_replaced_only_if_it_is_unchanged(writable: Place) -> None:
    store, path = writable.store, writable.path("pointer")
    first = store.put_if_absent(path, b"1")
    second = store.put_if_unchanged(path, b"2", first.version)
    assert second.version not in ("", first.version)
    assert store.stat(path).version == second.version
    with pytest.raises(ConflictError, match="another writer was faster"):
        store.put_if_unchanged(path, b"3", first.version)
    assert bytes(store.read_ranges(second, [(0, 9)])[0]) == b"2"
    assert store.put_if_unchanged(path, b"2", first.version).size == 1  # what is there is what was to be written
    with pytest.raises(RowmillError):
        store.put_if_unchanged(writable.path("none"), b"3", first.version)


def test_of_many_writers_one_replaces(writable: Place) -> None:
    first = writable.store.put_if_absent(writable.path("pointer"), b"0")

    def replace(number: int) -> bool:
        try:
            writable.store.put_if_unchanged(writable.path("pointer"), f"owner {number}".encode(), first.version)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(replace, range(8))) == 1


def test_a_local_file_is_uploaded_in_parts(writable: Place, tmp_path: Path) -> None:
    source = tmp_path / "source"
    content = os.urandom(9 * 2**20)
    source.write_bytes(content)
    made = writable.store.upload(source, writable.path("up/part"))
    assert made.size == len(content)
    assert bytes(writable.store.read_ranges(made, [(0, len(content))])[0]) == content
    source.write_bytes(b"small")
    again = writable.store.upload(source, writable.path("up/part"))
    assert (again.size, again.version != made.version) == (5, True)
    copied = writable.store.copy(writable.path("up/part"), writable.path("up/copy"))
    assert bytes(writable.store.read_ranges(copied, [(0, 5)])[0]) == b"small"
    with pytest.raises(MissingFileError):
        writable.store.copy(writable.path("none"), writable.path("up/copy"))


def test_files_are_deleted_together(writable: Place) -> None:
    paths = [writable.fill(f"{number}") for number in range(5)]
    writable.store.delete([*paths[:3], writable.path("none")])
    assert writable.names() == ["3", "4"]
    writable.store.delete([])


def test_what_a_storage_cannot_do_safely_is_refused_with_the_reason(tmp_path: Path) -> None:
    place = memory_place()
    path = place.fill("a")
    refused: list[Callable[[], object]] = [
        lambda: place.store.put_if_unchanged(path, b"", "1"),
        lambda: place.store.upload(tmp_path, path),
        lambda: place.store.copy(path, path),
        lambda: place.store.delete([path]),
    ]
    for write in refused:
        with pytest.raises(JobError, match="no put that replaces a file only if it is unchanged"):
            write()


def test_only_files_that_this_store_has_not_finished_are_left_out(tmp_path: Path) -> None:
    for name in ("towns.tmp", ".towns.csv", ".towns.csv.0123abcd.tmp"):
        (tmp_path / name).write_bytes(b"x")
    named = ["/.towns.csv", "/towns.tmp"]
    store = open_store(str(tmp_path))
    (page,) = store.list_pages(str(tmp_path))
    files, _ = store.list_folder(str(tmp_path))
    assert sorted(file.path.removeprefix(str(tmp_path)) for file in page) == named
    assert sorted(file.path.removeprefix(str(tmp_path)) for file in files) == named


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: Any, target: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(local_store.os, "link", no_links)
    with pytest.raises(JobError, match=r"no hard links \(Operation not supported\)"):
        open_store(str(tmp_path)).put_if_absent(str(tmp_path / "a"), b"1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_requests_and_bytes_are_counted_as_the_server_sees_them(object_store: Any, tmp_path: Path) -> None:
    remote = s3_place(object_store)
    source = tmp_path / "source"
    source.write_bytes(bytes(9 * 2**20))
    for number in range(1_001):
        remote.fill(f"many/{number}")
    before = storage_traffic.totals()
    with object_store.proxy.counting() as traffic:
        store = remote.store
        first = store.put_if_absent(remote.path("a"), b"12345")
        second = store.put_if_unchanged(remote.path("a"), b"123456", first.version)
        with suppress(ConflictError):
            store.put_if_absent(remote.path("a"), b"1234567")
        store.read_ranges(second, [(0, 2), (4, 99)])
        store.upload(source, remote.path("b"))
        store.upload(tmp_path / "source", remote.path("c"))
        store.copy(remote.path("b"), remote.path("d"))
        list(store.list_pages(remote.path("many")))
        list(store.list_pages(remote.path("none")))
        store.list_folder(remote.root)
        with suppress(MissingFileError):
            store.stat(remote.path("none"))
        store.open(remote.path("a")).read(3)
        store.delete([remote.path("c"), remote.path("d")])
    counted = storage_traffic.since(before)
    kinds = traffic.by_kind
    sent = {"get": kinds["get"], "list": kinds["list"], "head": kinds["head"], "delete": kinds["delete"]}
    sent["put"] = kinds["put if"] + kinds["part"] + kinds["multipart"] + kinds["copy"]
    assert sent == {"get": 4, "list": 4, "head": 5, "delete": 1, "put": 12}
    assert {name: counted[f"storage_{name}s"] for name in sent} == sent
    assert counted["storage_bytes_read"] == traffic.fetched
    assert counted["storage_bytes_written"] == 2 * 9 * 2**20 + 5 + 6 + 7


# Failures of a server


@pytest.fixture
def remote(object_store: Any) -> Place:
    return s3_place(object_store)


@pytest.mark.system
def test_a_put_whose_answer_is_lost_is_known_as_this_writers_own(object_store: Any, remote: Place) -> None:
    with object_store.proxy.failing(fail_next("put if", "lost")):
        first = remote.store.put_if_absent(remote.path("a"), b"run 1")
    with object_store.proxy.failing(fail_next("put if", "lost", 503, "lost")):
        second = remote.store.put_if_unchanged(remote.path("a"), b"run 2", first.version)
    assert remote.store.stat(remote.path("a")).version == second.version != first.version


@pytest.mark.system
def test_an_upload_whose_last_answer_is_lost_is_known_as_done(object_store: Any, remote: Place, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(9 * 2**20))
    ends = iter((None, "lost"))  # the upload begins, and ends
    with object_store.proxy.failing(lambda request: next(ends, None) if request.kind == "multipart" else None):
        assert remote.store.upload(source, remote.path("a")).size == 9 * 2**20


@pytest.mark.system
@pytest.mark.parametrize("fault", [503, 500, 429, "cut", "lost", "half"])
def test_reads_survive_what_passes(object_store: Any, remote: Place, fault: Any) -> None:
    path = remote.fill("a.bin", bytes(range(256)) * 4096)
    file = remote.store.stat(path)
    with object_store.proxy.failing(fail_next("get", fault, fault)):
        (part,) = remote.store.read_ranges(file, [(0, file.size)])
    assert bytes(part) == bytes(range(256)) * 4096


@pytest.mark.system
def test_a_storage_that_does_not_answer_is_an_error_in_the_time_that_is_set(object_store: Any) -> None:
    store = open_store("s3://shop", {**object_store.options, "retry_seconds": 0.5})
    with object_store.proxy.failing(fail_share(1, 0, 503)):
        with pytest.raises(TransientError, match="the storage does not answer") as error:
            store.stat("s3://shop/a")
        with pytest.raises(TransientError, match=r"longer than 0\.5 s, set ROWMILL_RETRY_SECONDS"):
            list(store.list_pages("s3://shop/a"))
    assert error.value.where == "s3://shop/a"


@pytest.mark.promise("listed a thousand a request", "infra/README.md#object-stores")
@pytest.mark.system
def test_ten_thousand_objects_are_listed_in_pages(object_store: Any, remote: Place) -> None:
    for number in range(10_000):
        remote.fill(f"day={number % 365}/{number}")
    with object_store.proxy.counting() as traffic:
        assert sum(map(len, remote.store.list_pages(remote.root))) == 10_000
    assert traffic.by_kind == {"list": 10}


@pytest.mark.system
def test_a_hundred_thousand_objects_are_listed_with_a_hundred_requests(gcs_double: Any) -> None:
    for number in range(100_000):
        gcs_double.put(f"lake/day={number % 365:03}/{number:06}", b"x")
    before = storage_traffic.totals()
    with gcs_double.proxy.counting() as traffic:
        listed = list_files("gs://shop/lake", gcs_double.options).files
    assert len(listed) == 100_000
    assert traffic.by_kind == {"head": 1, "list": 100}
    assert storage_traffic.since(before) == {"storage_heads": 1, "storage_lists": 100}


@pytest.mark.promise("`the storage refuses this user`")
@pytest.mark.system
def test_what_is_missing_or_refused_is_named(object_store: Any) -> None:
    options = object_store.options
    with pytest.raises(DataError, match="NoSuchBucket: The specified bucket does not exist") as error:
        list(open_store("s3://none", options).list_pages("s3://none/a"))
    assert "testing" not in str(error.value)
    with object_store.proxy.failing(fail_next("head", 403)), pytest.raises(JobError, match="refuses this user"):
        open_store("s3://shop", options).stat("s3://shop/a")
    remote = s3_place(object_store)
    remote.fill("x//y")
    with pytest.raises(DataError, match="give objects names without empty parts"):
        remote.names()


@pytest.mark.system
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # from Python 3.12 on
def test_a_fork_reads_and_writes_through_a_process_of_its_own(object_store: Any, remote: Place) -> None:
    content = bytes(range(256)) * 4096
    file = remote.store.stat(remote.fill("a", content))
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)  # whatever hangs
        try:
            lines = use_in_fork(object_store, remote, file, content)
        except BaseException as error:
            lines = [repr(error)]
        os.write(writes, "\n".join(lines).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writes)
    with os.fdopen(reads) as answered:
        assert answered.read().splitlines() == [
            "a store that was opened before a fork cannot be used after it",
            "same listing",
            "same bytes, by 8 threads",
            "another writer was faster",
            "a file is missing",
            "written b, read again: yes",
        ]
    assert remote.names() == ["a"]


def use_in_fork(object_store: Any, remote: Place, file: File, content: bytes) -> list[str]:
    lines: list[str] = []
    with pytest.raises(GiveUpError) as refused:
        remote.store.read_ranges(file, [(0, 1)])
    lines.append(refused.value.what)
    store = open_store(file.path, object_store.options)
    folder = file.path.rpartition("/")[0]
    if [*store.list_pages(folder)] == [[file]] and store.list_folder(folder) == ([file], []):
        lines.append("same listing")
    with ThreadPoolExecutor(8) as threads:
        parts = list(threads.map(lambda _: store.read_ranges(file, [(0, 1), (1, file.size)]), range(64)))
    if all(b"".join(part) == content for part in parts):
        lines.append("same bytes, by 8 threads")
    for call in (lambda: store.put_if_absent(file.path, b"else"), lambda: store.stat(folder + "/none")):
        with pytest.raises(RowmillError) as error:
            call()
        lines.append(error.value.what)
    child = store_process._process_of_fork._child
    assert child is not None
    child.kill()
    child.wait()
    with pytest.raises(TransientError, match="the process that reads the storage has ended"):
        store.stat(file.path)
    written = store.put_if_absent(folder + "/b", b"1234")
    is_same = store.open(written.path).read() == b"1234"
    store.delete([written.path])
    lines.append(f"written b, read again: {'yes' if is_same else 'no'}")
    return lines


# Ranges


def test_small_gaps_are_fetched_and_large_ones_are_not() -> None:
    needed = [(0, 1_000_000), (1_040_000, 2_000_000), (2_090_000, 3_000_000)]  # 5 % of 2.87 M are 143,500
    assert [(s.start, s.stop) for s in join_ranges(needed)] == [(0, 3_000_000)]
    assert [(s.start, s.stop) for s in join_ranges([*needed, (3_020_000, 3_030_000)])] == [
        (0, 3_000_000),
        (3_020_000, 3_030_000),
    ]
    far = [(0, 10 * 2**20), (10 * 2**20, 20 * 2**20)]  # neighbours that are large are fetched side by side
    assert [(s.start, s.stop) for s in join_ranges(far)] == far


def test_bytes_on_their_way_are_bounded() -> None:
    bounded = InFlight(100)
    entered: list[int] = []

    def work(nbytes: int) -> None:
        bounded.take(nbytes)
        entered.append(nbytes)
        bounded.give_back(nbytes)

    bounded.take(60)
    assert [bounded.take_if_free(nbytes) for nbytes in (41, 40)] == [False, True]
    bounded.give_back(40)
    threads = [threading.Thread(target=work, args=(nbytes,)) for nbytes in (60, 1_000)]
    for thread in threads:
        thread.start()
    assert entered == []
    bounded.give_back(60)
    for thread in threads:
        thread.join()
    assert sorted(entered) == [60, 1_000]
    assert bounded.most == 100


def test_links_to_folders_and_in_a_circle_are_not_files(tmp_path: Path) -> None:
    place = local_place(tmp_path / "out")
    place.fill("a/b.csv")
    (tmp_path / "out/link").symlink_to("a")
    (tmp_path / "out/circle").symlink_to("circle")
    (tmp_path / "out/nowhere").symlink_to("none")
    (tmp_path / "out/file").symlink_to("a/b.csv")
    assert place.names() == ["a/b.csv", "file"]


@pytest.mark.system
def test_a_put_is_refused_where_the_version_is_another_before_it_is_sent(gcs_double: Any) -> None:
    """Google's conditions are generations: whoever has the ETag asks for them first."""
    store = open_store("gs://shop/notes", gcs_double.options)
    first = store.put_if_absent("gs://shop/notes/a", b"one")
    store.put_if_unchanged("gs://shop/notes/a", b"two", first.version)
    with pytest.raises(ConflictError, match="another writer was faster"):
        store.put_if_unchanged("gs://shop/notes/a", b"three", first.version)
    with pytest.raises(ConflictError, match="another writer was faster"):
        store.put_if_unchanged("gs://shop/notes/none", b"three", first.version)
    assert store.read("gs://shop/notes/a")[1] == b"two"
