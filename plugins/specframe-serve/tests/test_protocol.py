"""The fields of requests: what OpenAI's and others' clients send is read, and what cannot be done is refused."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from pydantic import ValidationError
from specframe_serve.protocol import ChatCompletion, Completion, CompletionOptions

from specframe.errors import OptionError
from specframe.text.sampling import Sampling

COMPLETION = {"model": "tiny", "prompt": "a"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}


def read(**given: Any) -> tuple[CompletionOptions, Sampling]:
    """Return a body as it is read: a chat completion's where it has messages."""
    asked = (ChatCompletion if "messages" in given else Completion).model_validate(given)
    return asked, asked.sampling()


@pytest.mark.wide(but=["completion"])
@pytest.mark.parametrize("body", [COMPLETION, CHAT], ids=["completion", "chat"])
def test_every_parameter_of_openais_client_may_be_null(body):
    """Null asks for nothing, whichever parameter has it: the request is read as without it."""
    from openai.types import chat, completion_create_params

    plain, sampling = read(**body)
    module = chat.completion_create_params if "messages" in body else completion_create_params
    names = {*get_type_hints(module.CompletionCreateParamsStreaming)} - {*body}
    assert {"n", "stream", "max_tokens", "logprobs", "stream_options", "stop"} <= names
    for name in names:
        assert read(**body, **{name: None}) == (plain, sampling), name


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy"}),
        ("reasoning_effort", "high"),
        ("verbosity", "low"),
        ("web_search_options", {}),
        ("moderation", {"model": "m"}),
        ("echo", True),
    ],
)
def test_fields_that_would_change_the_answer_are_refused(name, value):
    """What is asked for and not done here is named, and never passed over."""
    with pytest.raises(OptionError, match=f"{name}: not supported here, expected it to be left out"):
        read(**CHAT, **{name: value})


def test_what_draws_has_no_effect_at_a_temperature_of_0():
    """Clients that send a share or a number of likely tokens with a temperature of 0 get greedy decoding; others are checked."""
    for body in (COMPLETION, CHAT):
        greedy = read(**body, temperature=0, top_p=0.9, top_k=5, min_p=0.1)[1]
        assert greedy == read(**body, temperature=0)[1]
        assert read(**body, temperature=1, top_p=0.9)[1].top_p == 0.9


@pytest.mark.wide
def test_penalties_and_biases_are_those_of_sampling():
    """Frequency penalties and biases of tokens are read, and a wrong token is refused."""
    for body in (COMPLETION, CHAT):
        how = read(**body, frequency_penalty=0.5, presence_penalty=-1, logit_bias={"3": 1, "7": -100})[1]
        assert (how.frequency_penalty, how.presence_penalty) == (0.5, -1)
        assert how.sequence_bias == (((3,), 1.0), ((7,), -100.0))
        with pytest.raises(OptionError, match="sequence_bias"):
            read(**body, logit_bias={"-1": 1})


@pytest.mark.wide
def test_unknown_fields_are_refused_with_null_too():
    """A misspelt field is reported, whatever its value."""
    for value in (1, None):
        with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
            read(**CHAT, colour=value)


@pytest.mark.wide
def test_parts_of_messages_are_one_text():
    """A content of several parts of text is read as its lines; a part of another type is refused."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked, _ = read(model="tiny", messages=[{"role": "user", "content": parts}])
    assert asked.prompts == [[{"role": "user", "content": "a\nb"}]]
    image = {"type": "image_url", "image_url": {"url": "u"}}
    asked, _ = read(model="tiny", messages=[{"role": "user", "content": [image]}])
    with pytest.raises(OptionError, match=r"messages: expected content of type text, got \{'type': 'image_url'"):
        assert asked.prompts
