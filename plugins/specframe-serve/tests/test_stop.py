"""The end of a server: requests under way have the grace to end, and nothing holds the end up."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest
from specframe_serve.service import STOPS

LONG = {"model": "tiny", "prompt": "a", "max_tokens": 1500, "ignore_eos": True}


def test_requests_end_with_a_sentence_where_there_is_no_grace(serve, hold):
    """A stream and a whole answer that would never end receive that the server stops, and the server ends."""
    made = serve(grace=0, batch_size=2)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(made.post, {**LONG, "stream": stream}) for stream in (True, False)]
        made.until(lambda: made.server.service.unfinished == 2)
        made.stop()
        streamed, whole = [one.result() for one in asked]
    assert made.ended()
    assert STOPS in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert (whole.status_code, whole.json()["error"]["message"]) == (503, STOPS)


@pytest.mark.wide
def test_requests_under_way_get_all_their_tokens_within_the_grace(serve, hold):
    """A request that is under way when the signal comes is answered as if none had come."""
    made = serve(grace=3600)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        asked = threads.submit(made.post, {**LONG, "max_tokens": 20, "return_token_ids": True})
        made.until(lambda: made.server.service.unfinished)
        made.stop()
        made.until(lambda: not made.server.service.alive)
        hold.released = True
        answer = asked.result()
    assert len(answer.json()["choices"][0]["token_ids"]) == 20
    assert made.ended()


def test_a_reader_that_has_stalled_does_not_hold_up_the_end(serve: Any, capfd: Any):
    """A client that has stopped to read its stream is left when the time is up, without a traceback on standard error."""
    made = serve(grace=0)
    with made.asking({**LONG, "max_tokens": 60, "n": 3, "logprobs": 20, "stream": True}, buffer=4096) as reader:
        made.until(lambda: made.server.service.unfinished)
        made.settle()  # all is there, log-probabilities of a hundred kilobytes among it, and waits for the reader
        made.stop()
        assert made.ended()
        reader.settimeout(20)
        read = b""
        while part := reader.recv(1 << 20):
            read += part
    assert read.startswith(b"HTTP/1.1 200 OK")
    assert b"[DONE]" not in read
    assert "Traceback" not in capfd.readouterr().err
