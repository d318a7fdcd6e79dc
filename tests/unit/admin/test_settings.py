"""Tests of settings: their sources, the order of these, and errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from admin.settings import (
    SOCKET_PATH_MAX,
    SOCKET_TAIL,
    Settings,
    is_malloc_set,
    load_settings,
    run_dir,
)
from registry.errors import BadRequest


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove this machine's FN_ variables."""
    for name in [name for name in os.environ if name.startswith("FN_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    """Write a --config file."""

    def write(text: str) -> Path:
        path = tmp_path / "fngate.toml"
        path.write_text(text)
        return path

    return write


def test_the_command_line_wins_over_the_environment_over_the_file_over_the_default(
    config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stronger source replaces a weaker one's value, only for the keys that it names."""
    assert load_settings({}).port == 8080
    file = config("port = 1\nheld_mib = 7\n")
    assert load_settings({}, file).port == 1
    monkeypatch.setenv("FN_PORT", "2")
    assert load_settings({}, file).port == 2
    assert load_settings({"port": None}, file).port == 2

    settings = load_settings({"port": 3}, file)

    assert (settings.port, settings.held_mib) == (3, 7)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"workers": 0}, "setting workers: Input should be greater than or equal to 1, got 0"),
        ({"workers": 33}, "setting workers: Input should be less than or equal to 32, got 33"),
        ({"port": 70000}, "setting port: Input should be less than or equal to 65535, got 70000"),
        (
            {"driver": "podman"},
            "setting driver: Input should be 'process' or 'docker', got 'podman'",
        ),
        ({"idle_s": "soon"}, "setting idle_s: Input should be a valid number"),
        (
            {"replica_uids": "5"},
            "setting replica_uids: expected FIRST:COUNT, at least 256 ids from 1 to",
        ),
        ({"prot": 1}, "setting prot: Extra inputs are not permitted, got 1"),
    ],
)
def test_a_wrong_value_is_told_with_its_key(overrides: dict[str, Any], message: str) -> None:
    """The error names the setting, what was expected and what was given."""
    with pytest.raises(BadRequest) as refused:
        load_settings(overrides)

    assert message in refused.value.message


def test_a_wrong_variable_is_told_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad value in the environment is an error like a bad option, not a traceback."""
    monkeypatch.setenv("FN_CPU_SLOTS", "many")

    with pytest.raises(BadRequest, match=r"setting cpu_slots: .*got 'many'"):
        load_settings({})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"port = ", "Invalid value"),
        (b"\xff\xfe", "can't decode"),
        (b"nonsense = 1\n", "setting nonsense: Extra inputs are not permitted"),
    ],
)
def test_an_unusable_known_hosts_file_is_an_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    """Broken TOML, another encoding and unknown keys are refused with the reason."""
    path = tmp_path / "fngate.toml"
    path.write_bytes(content)

    with pytest.raises(BadRequest, match=message):
        load_settings({}, path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """A missing file is an error with the option and the path."""
    with pytest.raises(BadRequest, match=r"--config: .*none\.toml"):
        load_settings({}, tmp_path / "none.toml")


@pytest.mark.parametrize("text", ["a.example, b.example,", '["a.example", "b.example"]'])
def test_public_hosts_stand_in_one_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Public hosts in a variable are separated by commas, or a JSON list."""
    monkeypatch.setenv("FN_PUBLIC_HOSTS", text)

    assert load_settings({}).public_hosts == ("a.example", "b.example")


def test_a_broken_list_of_hosts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A malformed list of hosts is refused by name."""
    monkeypatch.setenv("FN_PUBLIC_HOSTS", "[a")

    with pytest.raises(BadRequest, match="setting public_hosts"):
        load_settings({})


@pytest.mark.parametrize("text", ["10.0.0.0/8, ::1,", '["10.0.0.0/8", "::1"]'])
def test_trusted_proxies_stand_in_one_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway gets them; nobody is trusted by default."""
    assert load_settings({}).gateway().trusted_proxies == ()
    monkeypatch.setenv("FN_TRUSTED_PROXIES", text)

    assert load_settings({}).gateway().trusted_proxies == ("10.0.0.0/8", "::1")


@pytest.mark.parametrize("text", ["ghcr.io/acme/*, nginx,", '["ghcr.io/acme/*", "nginx"]'])
def test_images_stand_in_one_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scope deploy may name none by default."""
    assert load_settings({}).images == ()
    monkeypatch.setenv("FN_IMAGES", text)

    assert load_settings({}).images == ("ghcr.io/acme/*", "nginx")


@pytest.mark.parametrize("pattern", ["nginx:1.27", "ghcr.io/ac*", "GHCR.io/acme/*"])
def test_a_bad_pattern_of_images_is_told(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the item, the form and what it is."""
    monkeypatch.setenv("FN_IMAGES", f"nginx,{pattern}")

    with pytest.raises(BadRequest) as refused:
        load_settings({})
    said = refused.value.message
    assert said.startswith("setting images.1: expected a repository such as ghcr.io/acme/app, ")
    assert said.endswith(f", got {pattern!r}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("::1,proxy.example", "proxies.1: .*an IP address or a network .*, got 'proxy.example'"),
        ("10.0.0.1/8", "proxies.0: .*the network 10.0.0.0/8 or one address .*, got '10.0.0.1/8'"),
        ("[", "proxies: "),
    ],
)
def test_a_proxy_that_is_no_network_is_told(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the item, what was expected and what it is."""
    monkeypatch.setenv("FN_TRUSTED_PROXIES", text)

    with pytest.raises(BadRequest, match=f"setting trusted_{message}"):
        load_settings({})


def test_the_data_folder_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`~` is the user's home, and a relative folder is made absolute."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    assert load_settings({"data": "~/kept"}).data == tmp_path / "kept"
    assert load_settings({"data": "kept"}).data == tmp_path / "kept"


def test_a_data_folder_has_one_path(tmp_path: Path) -> None:
    """Another path to the same data folder gives the same replicas' sockets."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")

    assert load_settings({"data": tmp_path / "link"}).data == tmp_path / "kept"
    assert load_settings({"data": tmp_path / "new" / ".." / "kept"}).data == tmp_path / "kept"
    with pytest.raises(BadRequest, match=r"setting data: expected a folder, got .*circle"):
        load_settings({"data": tmp_path / "circle" / "kept"})


def test_settings_do_not_change() -> None:
    """Settings are immutable."""
    settings = Settings()

    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]  # the very thing that must fail


@pytest.mark.parametrize("listen", ["127.0.0.1", "::1", "localhost"])
def test_loopback_is_local(listen: str) -> None:
    """Loopback addresses are local."""
    assert Settings(listen=listen).is_local
    assert not Settings(listen="0.0.0.0").is_local


def test_sockets_lie_in_a_short_data_folder() -> None:
    """A data folder with a short path contains its sockets."""
    assert run_dir(Path("/srv/fn")) == Path("/srv/fn/run")


@pytest.mark.parametrize("length", range(70, 120))
def test_a_socket_path_always_fits(length: int) -> None:
    """A socket's path has at most 107 bytes, however long the data folder's."""
    data = Path("/" + "d" * length)

    path = f"{run_dir(data)}/00000000/data.sock"

    assert len(os.fsencode(path)) <= SOCKET_PATH_MAX
    assert len("/00000000/data.sock") == SOCKET_TAIL


def test_every_long_data_folder_has_sockets_of_its_own() -> None:
    """Data folders with long paths have socket folders that differ from each other and stay the
    same."""
    one, other = Path("/" + "a" * 120), Path("/" + "b" * 120)

    assert run_dir(one) != run_dir(other)
    assert run_dir(one) == run_dir(one)


def test_cores_are_shared_by_the_slots() -> None:
    """Each slot gets its share of the cores, at least one thread."""
    cores = os.cpu_count() or 1

    assert Settings(cpu_slots=1).pool().threads_per_slot == cores
    assert Settings(cpu_slots=256).pool().threads_per_slot == max(1, cores // 256)


def test_every_section_gets_its_settings(tmp_path: Path) -> None:
    """Every section gets the values that an operator sets."""
    settings = Settings(
        data=tmp_path,
        held_mib=3,
        orphan_s=9,
        ping_s=2,
        shutdown_s=8,
        access_log=True,
        traces="http://127.0.0.1:4318/v1/traces",
        traces_sample=0.1,
    )

    assert settings.store().data == tmp_path
    assert (settings.pool().model_dir, settings.pool().log_dir) == (
        tmp_path / "replicas",
        tmp_path / "logs",
    )
    assert settings.pool().orphan_s == 9
    assert settings.pool().ping_s == 2
    gateway = settings.gateway()
    assert (gateway.held_bytes_max, gateway.shutdown_s) == (3 * 2**20, 8)
    assert gateway.access_log
    assert (gateway.traces, gateway.traces_sample) == ("http://127.0.0.1:4318/v1/traces", 0.1)


def test_gpu_standbys_are_few() -> None:
    """There are no GPU standbys by default, and at most four per GPU, since each takes GPU
    memory."""
    assert load_settings({}).pool().gpu_standbys == 0
    assert load_settings({"gpu_standbys": 4}).pool().gpu_standbys == 4
    with pytest.raises(BadRequest, match=r"setting gpu_standbys: .*, got 5"):
        load_settings({"gpu_standbys": 5})


def test_gpus_are_chosen_by_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """All GPUs are used by default; an empty choice is refused."""
    assert load_settings({}).pool().gpus == "all"
    monkeypatch.setenv("FN_GPUS", "0,MIG-1")
    assert load_settings({}).pool().gpus == "0,MIG-1"
    with pytest.raises(BadRequest, match="setting gpus: String should have at least 1 character"):
        load_settings({"gpus": ""})


@pytest.mark.parametrize(
    ("name", "value", "is_set"),
    [
        ("MALLOC_ARENA_MAX", "1", True),
        ("MALLOC_TRIM_THRESHOLD_", "100000", True),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1", True),
        ("GLIBC_TUNABLES", "glibc.pthread.rseq=0", False),
        ("PATH", "malloc", False),
    ],
)
def test_an_allocator_set_by_the_user_is_kept(
    name: str, value: str, is_set: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a variable for the C allocator is set, whatever its value, none is changed."""
    for other in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(other)
    assert not is_malloc_set()
    monkeypatch.setenv(name, value)

    assert is_malloc_set() == is_set


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "grpc://a:4317", "http://", "http://a/?key=b"])
def test_traces_go_to_a_url_of_http(url: str) -> None:
    """A traces URL that is not http(s) is refused at the start."""
    with pytest.raises(BadRequest, match="setting traces: "):
        load_settings({"traces": url})


def test_commands_are_looked_for_where_the_server_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server functions have this server's own PATH by default, and another one by choice."""
    monkeypatch.setenv("PATH", "/opt/tools/bin:/usr/bin")
    assert load_settings({}).pool().server_path == "/opt/tools/bin:/usr/bin"
    monkeypatch.setenv("FN_SERVER_PATH", "/srv/bin")
    assert load_settings({}).pool().server_path == "/srv/bin"
    monkeypatch.delenv("FN_SERVER_PATH")
    monkeypatch.delenv("PATH")
    assert load_settings({}).pool().server_path == os.defpath


def test_a_lost_host_outlasts_its_replicas() -> None:
    """Without a setting, `host_lost_s` is 75, or 15 s more than replicas live alone; a shorter time
    is refused."""
    assert load_settings({}).pool().host_lost_s == 75.0
    assert load_settings({"orphan_s": 100.0}).pool().host_lost_s == 115.0
    assert load_settings({"orphan_s": 9.0, "host_lost_s": 24.0}).pool().host_lost_s == 24.0
    with pytest.raises(BadRequest, match=r"host_lost_s: expected at least 24 .*, got 23$"):
        load_settings({"orphan_s": 9.0, "host_lost_s": 23.0})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("zone=a, disk=nvme", {"zone": "a", "disk": "nvme"}),
        ('{"zone": "a"}', {"zone": "a"}),
        ("", {}),
    ],
)
def test_labels_of_this_machine_are_pairs_or_json(given: str, expected: dict[str, str]) -> None:
    """Both forms of the variable are read."""
    assert load_settings({"host_labels": given}).host_labels == expected


@pytest.mark.parametrize("given", ["zone", "host=a", "Zone=a", "zone=a b"])
def test_bad_labels_of_this_machine_are_refused(given: str) -> None:
    """The error names the setting."""
    with pytest.raises(BadRequest, match=r"^setting host_labels: "):
        load_settings({"host_labels": given})


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"price_device_hour": "cuda=-1"}, "setting price_device_hour: expected prices per hour"),
        ({"price_device_hour": "1,2"}, "setting price_device_hour: expected each price once"),
        ({"price_kwh": -0.1}, "setting price_kwh: "),
        ({"price_kwh": "nan"}, "setting price_kwh: "),
        ({"currency": "euro"}, "setting currency: "),
    ],
)
def test_bad_prices_are_refused(overrides: dict[str, Any], text: str) -> None:
    """A price that cannot be one ends the start."""
    with pytest.raises(BadRequest, match=text):
        load_settings(overrides)


def test_prices_come_from_variables_and_files(
    config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may have a plain number; nothing has a price by default."""
    assert not load_settings({}).prices()
    assert load_settings({}, config("price_device_hour = 2.5")).prices().default == 2.5
    monkeypatch.setenv("FN_PRICE_DEVICE_HOUR", "cpu=0.04,NVIDIA H200=3.9")
    monkeypatch.setenv("FN_PRICE_KWH", "0.31")
    monkeypatch.setenv("FN_CURRENCY", "EUR")
    prices = load_settings({}).prices()

    assert (prices.currency, prices.kwh, prices.default) == ("EUR", 0.31, None)
    assert prices.by_name == {"cpu": 0.04, "nvidia h200": 3.9}


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ({"link_listen": "7444"}, "setting link_listen: expected HOST:PORT, such as"),
        ({"link_listen": ":7444"}, "setting link_listen: expected HOST:PORT, such as"),
        ({"link_listen": "10.0.0.5:65536"}, "setting link_listen: expected HOST:PORT, such as"),
        ({"link_listen": "fd00::5:7444"}, "setting link_listen: expected HOST:PORT, such as"),
        ({"link_listen": "10.0.0.5:7444/x"}, "setting link_listen: expected HOST:PORT, such as"),
        (
            {"link_listen": "gpu.example:7444"},
            "setting link_listen: expected an address of this machine in numbers, such as"
            " 0.0.0.0:7444, got gpu.example:7444",
        ),
        (
            {"link_listen": "0.0.0.0:7444"},
            "setting link_listen: 0.0.0.0:7444 stands for all addresses of this machine: set"
            " link_address (FN_LINK_ADDRESS) to the one that replicas dial, such as 10.0.0.5:7444",
        ),
        ({"link_listen": "[::]:7444"}, "setting link_listen: [::]:7444 stands for all addresses"),
        (
            {"link_listen": "0.0.0.0:7444", "link_address": "0.0.0.0:7444"},
            "setting link_address: expected the address and port that replicas dial, such as"
            " 10.0.0.5:7444, got 0.0.0.0:7444",
        ),
        (
            {"link_listen": "0.0.0.0:7444", "link_address": "[::]:7444"},
            "setting link_address: expected the address and port that replicas dial",
        ),
        (
            {"link_listen": "0.0.0.0:7444", "link_address": "10.0.0.5:0"},
            "setting link_address: expected the address and port that replicas dial",
        ),
        (
            {"link_address": "10.0.0.5:7444"},
            "setting link_address: expected link_listen (FN_LINK_LISTEN) as well",
        ),
    ],
)
def test_bad_addresses_of_links_are_refused(overrides: dict[str, Any], text: str) -> None:
    """A replica must be able to dial what the settings say; the text names what is missing."""
    with pytest.raises(BadRequest) as caught:
        load_settings(overrides)
    assert caught.value.message.startswith(text)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"link_listen": "10.0.0.5:7444"},
        {"link_listen": "[fd00::5]:7444"},
        {"link_listen": "0.0.0.0:7444", "link_address": "gpu.example:30000"},
    ],
)
def test_good_addresses_of_links(overrides: dict[str, Any]) -> None:
    """Off by default; an address of this machine, or any with the one to dial."""
    settings = load_settings(overrides)
    assert settings.link_listen == overrides.get("link_listen", "")
