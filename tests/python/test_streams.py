"""Streams and events: PyTorch's interface, with work ordered by its data."""

import time

import pytest
import torch


@pytest.fixture(autouse=True)
def first_device():
    yield
    torch.tpu.set_stream(torch.tpu.default_stream(0))


def slow(n=700, times=12):
    """Work that is still under way when the call returns."""
    x = torch.full((n, n), 1.0 / n, device="tpu")
    torch.tpu.synchronize()
    for _ in range(times):
        x = x @ x
    return x


def test_stream():
    stream = torch.tpu.Stream()
    assert isinstance(stream, torch.Stream)
    assert stream.device == torch.device("tpu:0")
    assert stream != torch.tpu.default_stream()
    assert stream != torch.tpu.Stream()
    assert stream == torch.tpu.Stream(
        stream_id=stream.stream_id, device_index=0, device_type=stream.device_type
    )
    assert hash(stream) == hash(stream)
    assert repr(stream) == f"torch.tpu.Stream(device=tpu:0, stream_id={stream.stream_id})"
    assert torch.tpu.Stream("tpu:2").device.index == 2
    assert torch.tpu.Stream(3).device.index == 3
    assert torch.tpu.Stream(priority=-1).device.index == 0
    with torch.tpu.device(1):
        assert torch.tpu.Stream().device.index == 1
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.tpu.Stream(4)


def test_current_stream():
    stream = torch.tpu.Stream(1)
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    with torch.tpu.stream(stream) as entered:
        assert entered is stream
        assert torch.tpu.current_device() == 1
        assert torch.tpu.current_stream() == stream
        assert torch.tpu.current_stream(0) == torch.tpu.default_stream(0)
        with torch.tpu.stream(None):
            assert torch.tpu.current_stream() == stream
    assert torch.tpu.current_device() == 0
    assert torch.tpu.current_stream(1) == torch.tpu.default_stream(1)
    with torch.tpu.Stream():
        assert torch.tpu.current_stream() != torch.tpu.default_stream()
    assert torch.tpu.current_stream() == torch.tpu.default_stream()


def test_set_stream():
    stream = torch.tpu.Stream(2)
    torch.tpu.set_stream(stream)
    assert torch.tpu.current_device() == 2
    assert torch.tpu.current_stream() == stream
    torch.tpu.set_stream(None)
    assert torch.tpu.current_stream() == stream
    torch.tpu.set_stream(torch.tpu.default_stream(2))
    assert torch.tpu.current_stream() == torch.tpu.default_stream(2)


def test_synchronize_waits():
    slow()
    torch.tpu.current_stream().synchronize()
    assert torch.tpu.current_stream().query() is True
    slow()
    torch.tpu.synchronize()
    assert torch.tpu.current_stream().query() is True


def test_query_tells_work_under_way():
    x = slow()
    assert torch.tpu.current_stream().query() is False
    assert torch.tpu.current_stream(1).query() is True
    x.cpu()
    torch.tpu.synchronize()
    assert torch.tpu.current_stream().query() is True


def test_event():
    event = torch.tpu.Event()
    assert isinstance(event, torch.tpu.Event)
    assert isinstance(event, torch.Event)
    assert not isinstance(3, torch.tpu.Event)
    assert event.device.type == "tpu"
    # Nothing recorded is nothing to wait for.
    assert event.query() is True
    event.synchronize()
    event.wait()


def test_event_completes_after_the_work_before_it():
    slow()
    event = torch.tpu.Event()
    event.record()
    assert event.query() is False
    event.synchronize()
    assert event.query() is True


def test_event_does_not_wait_for_the_work_after_it():
    start = time.perf_counter()
    slow()
    torch.tpu.synchronize()
    duration = time.perf_counter() - start
    event = torch.tpu.Event()
    event.record()
    slow(times=36)
    start = time.perf_counter()
    event.synchronize()
    assert time.perf_counter() - start < duration
    assert torch.tpu.current_stream().query() is False
    torch.tpu.synchronize()


def test_event_may_be_recorded_again():
    event = torch.tpu.Event()
    event.record()
    event.synchronize()
    slow()
    event.record()
    assert event.query() is False
    event.synchronize()


def test_elapsed_time():
    start, end = (torch.tpu.Event(enable_timing=True) for _ in range(2))
    before = time.perf_counter()
    start.record()
    slow()
    end.record()
    end.synchronize()
    wall = 1e3 * (time.perf_counter() - before)
    assert 0 < start.elapsed_time(end) <= wall
    assert start.elapsed_time(start) == 0
    assert end.elapsed_time(start) == -start.elapsed_time(end)


def test_elapsed_time_wants_recorded_events():
    recorded, fresh = (torch.tpu.Event(enable_timing=True) for _ in range(2))
    recorded.record()
    recorded.synchronize()
    with pytest.raises(ValueError, match="Both events must be recorded"):
        recorded.elapsed_time(fresh)
    untimed = torch.tpu.Event()
    untimed.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        recorded.elapsed_time(untimed)
    slow()
    late = torch.tpu.Event(enable_timing=True)
    late.record()
    with pytest.raises(RuntimeError, match="completed before calculating elapsed time"):
        recorded.elapsed_time(late)
    torch.tpu.synchronize()


def test_stream_records_and_waits():
    one, two = torch.tpu.Stream(), torch.tpu.Stream()
    with torch.tpu.stream(one):
        x = slow()
    event = one.record_event()
    assert isinstance(event, torch.tpu.Event)
    mine = torch.tpu.Event()
    assert one.record_event(mine) is mine
    two.wait_event(event)
    two.wait_stream(one)
    event.wait(two)
    with torch.tpu.stream(two):
        y = x.sum()
    assert y.item() == pytest.approx(700, rel=1e-3)


def test_work_is_ordered_across_streams_without_being_told():
    """Every operation waits for its data: forgetting wait_stream cannot give wrong numbers."""
    one, two = torch.tpu.Stream(), torch.tpu.Stream()
    with torch.tpu.stream(one):
        x = slow()
        x.fill_(3)
    with torch.tpu.stream(two):
        y = x * 2
        x.fill_(5)
    assert y.unique().tolist() == [6.0]
    assert x.unique().tolist() == [5.0]


def test_record_stream():
    x = torch.ones(3, device="tpu")
    assert x.record_stream(torch.tpu.Stream()) is None
    assert x.record_stream(torch.Stream("tpu")) is None
    assert x.tolist() == [1, 1, 1]


def test_events_of_other_devices():
    with torch.tpu.device(1):
        event = torch.tpu.Event(enable_timing=True)
        event.record()
    assert event.device == torch.device("tpu:1")
    event.synchronize()
    with pytest.raises(RuntimeError, match=r"Event device index 1 does not match .* index 2"):
        event.record(torch.tpu.Stream(2))
