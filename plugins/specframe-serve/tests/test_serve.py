"""The server, asked by OpenAI's own client and by plain HTTP, beside a pipeline of the same models."""

from __future__ import annotations

import concurrent.futures
import copy
import json
import time
from typing import Any

import httpx2 as httpx
import pytest
import torch
from command_line import invoke
from specframe_serve import serve_command
from specframe_serve.service import STOPS

from specframe import Pipeline, Sampling
from specframe.engine.local_engine import LocalEngine

PROMPTS = ["def add(a, b):", "class Stack:\n    def", "import os\n", "for i in range(10):\n   ", "def fib(n):\n    if"]
NEW = 12


@pytest.fixture(scope="module")
def running(serve: Any) -> Any:
    """A server with rows for three sequences."""
    return serve(limits={"waiting": 40, "request_tokens": 20_000})


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    """A pipeline of the same models and strategies."""
    return Pipeline(accept="gumbel", batch_size=3, draft_length=2)


def ids(answer: Any) -> list[list[int]]:
    """Return the token ids of an answer's choices."""
    return [choice.token_ids for choice in answer.choices]


ASKED = {"model": "tiny", "max_tokens": NEW, "extra_body": {"return_token_ids": True}}


@pytest.mark.wide
def test_requests_at_once_get_the_tokens_of_a_pipeline(running, pipe):
    """Greedy and seeded requests that share batches have the ids that a run of the same prompts gives."""
    client = running.client()
    greedy = [result.token_ids for result in pipe.generate(PROMPTS, NEW)]
    drawn = [result.token_ids for result in pipe.generate(PROMPTS, NEW, sampling=Sampling(temperature=0.8))]

    def ask(number: int, temperature: float) -> list[int]:
        seed = {"seed": number} if temperature else {}
        answer = client.completions.create(prompt=PROMPTS[number], temperature=temperature, **seed, **ASKED)
        return ids(answer)[0]

    with concurrent.futures.ThreadPoolExecutor(10) as threads:
        both = [[threads.submit(ask, number, t) for number in range(len(PROMPTS))] for t in (0.0, 0.8)]
        assert [one.result() for one in both[0]] == greedy
        assert [one.result() for one in both[1]] == drawn


def test_streams_say_what_whole_answers_say(running):
    """The pieces of a stream, joined by choice, are the answer that is not streamed; the usage comes last."""
    asked = {**ASKED, "prompt": PROMPTS[:2], "n": 2, "temperature": 0.7, "seed": 5}
    whole = running.client().completions.create(**asked)
    texts, tokens, reasons = [""] * 4, [[] for _ in range(4)], {}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for chunk in running.client().completions.create(**asked, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.token_ids
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
        last = chunk
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == ids(whole)
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert last.usage == whole.usage
    assert len({tuple(one) for one in tokens}) == 4


def test_every_chunk_tells_the_usage_where_that_is_asked_for(running):
    """With continuous usage the numbers of tokens grow from chunk to chunk, and the last chunk has the same as the one before."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**GOOD, "max_tokens": NEW, "ignore_eos": True, "stream": True, "stream_options": options}
    lines = [line for line in running.post(body).text.splitlines() if line.startswith("data: {")]
    usages = [json.loads(line[6:])["usage"] for line in lines]
    told = [usage["completion_tokens"] for usage in usages]
    assert told[0] > 0
    assert told == sorted(told)
    assert told[-2:] == [NEW, NEW]
    assert {usage["total_tokens"] - usage["completion_tokens"] for usage in usages} == {usages[0]["prompt_tokens"]}


@pytest.mark.quick
def test_stop_and_logprobs(running, pipe):
    """Stop strings end a choice before them; log-probabilities are the pipeline's."""
    expected = next(pipe.generate(PROMPTS[:1], NEW, sampling=Sampling(logprobs=2)))
    answer = running.client().completions.create(prompt=PROMPTS[0], logprobs=2, **ASKED).choices[0]
    assert answer.logprobs.token_logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert [len(top) for top in answer.logprobs.top_logprobs] == [2] * NEW
    assert "".join(answer.logprobs.tokens) == answer.text == expected.text
    stop = expected.text.strip()[:4]
    cut = running.client().completions.create(prompt=PROMPTS[0], stop=stop, **ASKED).choices[0]
    assert (cut.text, cut.finish_reason) == (expected.text[: expected.text.index(stop)], "stop")


@pytest.mark.wide(but=["0"])
@pytest.mark.parametrize("new", [0, 1])
def test_an_echo_scores_the_prompt(running, pipe, new):
    """A choice begins with its prompt, whose log-probabilities are the target's: what harnesses ask of likelihoods is there."""
    prompts = [pipe.encode(prompt) for prompt in PROMPTS[:3]]
    asked = {**GOOD, "prompt": prompts, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1234, "max_tokens": new}
    answer = running.post(asked).json()
    assert answer["usage"]["completion_tokens"] == new * 3
    for ids_, choice in zip(prompts, answer["choices"], strict=True):
        with torch.inference_mode():
            expected_TV = pipe.target_model(torch.tensor([ids_])).logits[0].log_softmax(-1)
        told = choice["logprobs"]
        assert choice["finish_reason"] == "length"
        assert choice["text"].startswith(pipe.tokenizer.decode(ids_))
        assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["top_logprobs"]) == len(ids_) + new
        assert (told["token_logprobs"][0], told["top_logprobs"][0]) == (None, None)
        found = told["token_logprobs"][1 : len(ids_)]
        assert found == pytest.approx([float(expected_TV[n, token]) for n, token in enumerate(ids_[1:])], abs=1e-4)
        best = [max(top.values()) for top in told["top_logprobs"][1 : len(ids_)]]
        assert best == pytest.approx(expected_TV[:-1].amax(-1).tolist(), abs=1e-4)
    lines = running.post({**asked, "stream": True}).text.splitlines()
    pieces = [one for line in lines if line.startswith("data: {") for one in json.loads(line[6:])["choices"]]
    for number, choice in enumerate(answer["choices"]):
        own = [piece for piece in pieces if piece["index"] == number]
        assert "".join(piece["text"] for piece in own) == choice["text"]
        assert own[-1]["logprobs"] == choice["logprobs"]
    assert not running.server.service._scores


@pytest.mark.quick
def test_chat(running, pipe, monkeypatch):
    """Messages are read under the tokenizer's chat template, which the embedded target has; without one the answer says so."""
    messages = [{"role": "user", "content": "write a loop"}]
    asked = {**ASKED, "messages": messages}
    expected = next(pipe.generate([messages], NEW))
    answer = running.client().chat.completions.create(**asked, logprobs=True, top_logprobs=1)
    assert ids(answer)[0] == expected.token_ids
    assert answer.usage.prompt_tokens == len(pipe.encode("# write a loop\n"))
    assert answer.choices[0].message.content == expected.text
    assert [place.token for place in answer.choices[0].logprobs.content] == [
        pipe.tokenizer.decode([token]) for token in expected.token_ids
    ]
    pieces = running.client().chat.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == expected.text
    monkeypatch.setattr(running.pipe.tokenizer, "chat_template", None)
    import openai

    with pytest.raises(openai.BadRequestError, match="no chat template"):
        running.client().chat.completions.create(**asked)


GOOD = {"model": "tiny", "prompt": "a"}


@pytest.mark.wide(
    but=["body12-400-expected at most 20000 tokens, of prompts and new ones in all", "half a surrogate pair"]
)
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{garbage", 400, "the body"),
        ({"model": "tiny"}, 400, "prompt: Field required"),
        ({**GOOD, "model": "other"}, 404, "model: expected 'tiny', got 'other'"),
        ({**GOOD, "top_p": 3}, 400, "top_p: expected a number above 0 and at most 1"),
        ({**GOOD, "n": 0}, 400, "n: Input should be greater than or equal to 1"),
        ({**GOOD, "max_tokens": 0}, 400, "max_tokens: expected at least 1 without echo"),
        ({**GOOD, "logit_bias": {"99999": 1}}, 400, "sequence_bias: expected ids from 0 to"),
        ({**GOOD, "best_of": 3}, 400, "best_of: expected the value of n, 1"),
        ({**GOOD, "prompt": ""}, 400, "the prompt is empty"),
        ({**GOOD, "prompt": [99999]}, 400, "token id 99999"),
        ({**GOOD, "max_tokens": 10**6}, 400, "max_tokens: expected at most 4096"),
        ({**GOOD, "prompt": ["a"] * 20_000, "n": 128}, 400, "expected at most 43 sequences, as many as may be decoded"),
        ({**GOOD, "n": 43, "max_tokens": 480}, 400, "expected at most 20000 tokens, of prompts and new ones in all"),
        (b'{"model": "tiny", "prompt": "\\ud800"}', 400, "half of a surrogate pair"),
        (b'{"prompt": "' + b"x" * (10 << 20) + b'"}', 413, "the body is too large: expected at most 1048576 bytes"),
        (b'{"model": "tiny", "prompt": "a", "stop": "\\ud800"}', 400, "stop"),
        pytest.param(b'{"model": "tiny", "prompt": "a", "\\ud800": 1}', 400, "got \\ud800", id="half a surrogate pair"),
        (b'{"model": "\\ud800", "prompt": "a"}', 404, "got '\\ud800'"),
    ],
)
def test_bad_bodies(running, body, status, words):
    """A wrong body is answered with its status and one sentence, and nothing of it stays."""
    answer = running.post(body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    assert running.server.service.unfinished == 0


def test_a_body_of_unknown_length_is_counted(running):
    """A body that comes in chunks is refused once it is too large."""
    pieces = (b" " * (1 << 16) for _ in range(40))
    answer = httpx.post(f"{running.url}/v1/completions", content=pieces, timeout=1200)
    assert answer.status_code == 413


@pytest.mark.wide
def test_a_page_of_another_site_cannot_ask(running):
    """A browser sends its JSON only where the server allows the site: it allows none. Other types are refused."""
    sent = {"Content-Type": "text/plain", "Origin": "http://elsewhere.example"}
    answer = running.post(GOOD, headers=sent)
    assert answer.status_code == 400
    asked = {"Origin": sent["Origin"], "Access-Control-Request-Method": "POST"}
    allowed = httpx.options(f"{running.url}/v1/completions", headers=asked)
    assert allowed.status_code == 405
    assert not [name for one in (answer, allowed) for name in one.headers if name.startswith("access-control")]


def test_other_routes(running):
    """Models, health, the page, their heads without bodies, and routes that there are not."""
    model = running.client().models.retrieve("tiny")
    assert (model.id, model.max_model_len) == ("tiny", 2048)
    assert [one.id for one in running.client().models.list()] == ["tiny"]
    assert httpx.get(f"{running.url}/v1/models/none").status_code == 404
    assert httpx.get(f"{running.url}/health").status_code == 200
    for path in ("health", "metrics", "v1/models", "v1/models/tiny", "live", ""):
        head = httpx.head(f"{running.url}/{path}")
        assert (head.status_code, head.content) == (200, b"")
    assert httpx.get(f"{running.url}/nothing").status_code == 404
    assert httpx.get(f"{running.url}/v1/completions").status_code == 405
    assert "no rival of production servers" in httpx.get(running.url).text


@pytest.mark.usefixtures("hold")
def test_a_stream_that_is_left_ends_in_the_engine(running):
    """A client that hangs up in the middle of its stream frees the row: by itself the stream would never end."""
    with running.client().completions.create(model="tiny", prompt="a", max_tokens=1500, stream=True) as stream:
        assert next(iter(stream)).choices
        assert running.server.service.unfinished == 1
    running.settle()
    assert running.server.service._engine.idle
    assert not running.server.service._chunks._texts


@pytest.mark.wide
@pytest.mark.usefixtures("hold")
def test_a_request_that_is_dropped_ends_in_the_engine(running):
    """A client that hangs up while it waits for a whole answer frees the row: by itself the answer would never come."""
    connection = running.asking({**GOOD, "max_tokens": 1500})
    running.until(lambda: running.server.service.unfinished)
    connection.close()
    running.settle()
    assert running.server.service._engine.idle


@pytest.mark.wide
def test_a_failed_round_ends_its_requests_alone(running, monkeypatch):
    """When a round fails, the requests under way receive its error, and the next one is answered."""
    step = LocalEngine.step

    def fails(engine: LocalEngine) -> Any:
        if not engine.idle:
            monkeypatch.setattr(LocalEngine, "step", step)
            raise RuntimeError("planted")
        return step(engine)

    monkeypatch.setattr(LocalEngine, "step", fails)
    answer = running.post(GOOD)
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "planted")
    assert running.post(GOOD).status_code == 200


@pytest.mark.wide
def test_a_prompt_of_nan_is_told_and_the_one_beside_it_answered(serve, pipe):
    """A prompt that the target has no distribution for is answered with the error, in a stream as well, and no other one is."""
    target, broken = copy.deepcopy(pipe.target_model), 40
    with torch.no_grad():
        target.get_input_embeddings().weight[broken] = float("nan")
    target.lm_head.weight = torch.nn.Parameter(pipe.target_model.lm_head.weight.detach().clone())
    made = serve(target=target, tokenizer=pipe.tokenizer, drafter="prompt-lookup")
    whole, streamed = (made.post({**GOOD, "prompt": [5, broken, 7], "stream": stream}) for stream in (False, True))
    assert (whole.status_code, "no distribution" in whole.json()["error"]["message"]) == (400, True)
    assert "no distribution" in streamed.text
    usual, beside = (one.post({**GOOD, "prompt": [5, 6, 7], "return_token_ids": True}) for one in (serve(), made))
    assert usual.json()["choices"][0]["token_ids"] == beside.json()["choices"][0]["token_ids"]


@pytest.mark.wide
def test_a_full_queue_and_a_key(serve):
    """More sequences than may wait are answered with 429, and a wrong key with 401."""
    import openai

    made = serve(key="secret", batch_size=1, limits={"waiting": 1})
    assert made.post(GOOD).status_code == 401
    assert httpx.get(f"{made.url}/health").status_code == 200
    client = made.client("secret")
    with client.completions.create(model="tiny", prompt="a", max_tokens=1500, stream=True) as stream:
        next(iter(stream))
        with pytest.raises(openai.RateLimitError, match="the queue is full: 1 sequences are decoded or wait, 2 may"):
            client.completions.create(model="tiny", prompt="a", n=2)
    made.settle()
    assert client.completions.create(model="tiny", prompt="a", max_tokens=2).choices


@pytest.mark.slow
def test_a_server_with_workers(serve, pipe):
    """With worker processes answers have the same ids, and who hangs up frees the row."""
    made = serve(executor="workers,count=2", batch_size=1)
    client = made.client()
    expected = [result.token_ids for result in pipe.generate(PROMPTS, NEW)]
    with concurrent.futures.ThreadPoolExecutor(5) as threads:
        asked = [threads.submit(client.completions.create, prompt=prompt, **ASKED) for prompt in PROMPTS]
        assert [ids(one.result())[0] for one in asked] == expected
    with client.completions.create(model="tiny", prompt="a", max_tokens=1500, stream=True) as stream:
        next(iter(stream))
    made.settle()
    assert ids(client.completions.create(prompt=PROMPTS[0], **ASKED)) == expected[:1]
    made.pipe.executor.dismiss()


@pytest.mark.wide
def test_many_streams_are_not_mixed(running, pipe):
    """Sixteen streams, slow readers among them, each have the tokens of their own prompt."""
    expected = [result.token_ids for result in pipe.generate([p * 2 for p in PROMPTS], NEW)]

    def read(number: int) -> list[int]:
        body = {**GOOD, "prompt": PROMPTS[number % 5] * 2, "max_tokens": NEW, "stream": True, "return_token_ids": True}
        found: list[int] = []
        with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=1200) as answer:
            for line in answer.iter_lines():
                if number % 4 == 0:
                    time.sleep(0.02)
                if line.startswith("data: {"):
                    found += json.loads(line[6:])["choices"][0]["token_ids"]
        return found

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        assert [*threads.map(read, range(16))] == [expected[number % 5] for number in range(16)]
    assert running.server.service.unfinished == 0


LONG = {**GOOD, "max_tokens": 1500, "ignore_eos": True}


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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments with which the server is run; it is not."""
    given: list[Any] = []
    monkeypatch.setattr(serve_command, "run", lambda *arguments: given.extend(arguments))
    return given


def test_an_open_door_is_told_of(asked):
    """Whoever listens for other machines without a key is warned; a key, or this machine alone, needs no warning."""
    for host, key, warned in (("0.0.0.0", None, True), ("0.0.0.0", "secret", False), ("127.0.0.1", None, False)):
        given = ["serve", "--host", host, "--port", "0", *(["--api-key", key] if key else [])]
        outcome = invoke(*given)
        assert outcome.exit_code == 0, outcome.output
        assert ("Warning: listening at 0.0.0.0 without --api-key" in outcome.stderr) == warned


@pytest.mark.wide
def test_a_negative_grace_is_refused(asked):
    """The grace is a number of seconds of at least 0."""
    outcome = invoke("serve", "--port", "0", "--grace", "-1")
    assert outcome.exit_code == 2
    assert "--grace: expected a number of at least 0" in outcome.stderr
    assert not asked


@pytest.mark.wide(but=["given0-None"])
@pytest.mark.parametrize(("given", "seed"), [((), None), (("--seed", "0"), 0), (("--seed", "7"), 7)])
def test_the_servers_seed_is_the_one_asked_for(asked, given, seed):
    """Without the option requests without a seed follow from nothing; the option's default is no such choice."""
    outcome = invoke("serve", "--port", "0", *given)
    assert outcome.exit_code == 0, outcome.output
    assert asked[-1] == seed
