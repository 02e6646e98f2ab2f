import psutil
import pytest

from mesa import device


@pytest.mark.parametrize(
    ("limit", "free"), [("1000", 1000 - 900 + 300), ("100", 0), ("max", None), (str(2**62), None), ("", None)]
)
def test_free_memory_ends_at_the_containers_limit(tmp_path, monkeypatch, limit, free):
    monkeypatch.setattr(device, "_CGROUP", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 5000}))
    files = {"max": limit, "current": "900", "stat": "anon 500\nactive_file 100\ninactive_file 200\n"}
    for name, text in files.items() if limit else ():
        (tmp_path / f"memory.{name}").write_text(text)
    assert device.free_bytes() == (5000 if free is None else free)


def test_what_torch_holds_unused_of_an_accelerator_is_free(monkeypatch):
    monkeypatch.setattr(device, "is_accelerator", lambda _: True)
    for name, value in {"get_memory_info": (100, 900), "memory_reserved": 70, "memory_allocated": 50}.items():
        monkeypatch.setattr(f"torch.accelerator.{name}", lambda place, value=value: value)
    assert device.free_bytes("cuda") == 120
