"""What is read of a request of Gemini's protocol, and what is refused by name."""

import base64
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentos.gateways.gemini.embeddings import parse_batch, parse_one
from agentos.gateways.gemini.fields import GoogleFields, decode_signature, encode_signature, json_schema
from agentos.gateways.gemini.request import parse_count, parse_request
from agentos.gateways.request_fields import Asked
from agentos.llm.answers.prompt_blocks import Block
from agentos.llm.answers.sampling import Sampling
from agentos.llm.providers.provider import Image, Message, Question
from agentos_sdk.encoding.codec import Text
from agentos_sdk.errors import BadRequest
from agentos_sdk.values import Tool, ToolCall
from tests.support.runs.rows import each_row

USER = {"role": "user", "parts": [{"text": "hello"}]}
DECLARED = {"name": "weather", "description": "At a place.", "parametersJsonSchema": {"type": "object"}}
OTHER = {"name": "time"}
PNG = b"\xff\xfe\xfbpng"  # whose base64 differs in the alphabet for URLs
IMAGE = {"inlineData": {"mimeType": "image/png", "data": base64.urlsafe_b64encode(PNG).decode().rstrip("=")}}


def parse(provider: str = "gemini", **fields: Any) -> Asked:
    return parse_request(json.dumps({"contents": [USER], **fields}).encode(), "m", provider)


def question(**fields: Any) -> Question:
    return parse(**fields).question


def set_to(**settings: Any) -> Question:
    return question(generationConfig=settings)


def refused(provider: str = "gemini", **fields: Any) -> str:
    with pytest.raises(BadRequest) as error:
        parse(provider, **fields)
    assert error.value.details["param"] == str(error.value).partition(":")[0]
    return str(error.value)


def user(*parts: Any) -> Any:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Any) -> Any:
    return {"role": "model", "parts": list(parts)}


def calls(name: str, **more: Any) -> Any:
    return {"functionCall": {"name": name, "args": {"place": "Rome"}, **more}}


def answers(name: str, response: Any, **more: Any) -> Any:
    return {"functionResponse": {"name": name, "response": response, **more}}


def test_a_request_with_everything() -> None:
    settings = {
        "temperature": 1.5,
        "topP": 0.9,
        "topK": 40,
        "seed": 7,
        "presencePenalty": 0.5,
        "frequencyPenalty": -0.5,
        "maxOutputTokens": 100,
        "stopSequences": ["END"],
        "candidateCount": 1,
        "responseModalities": ["TEXT"],
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "integer"},
        "thinkingConfig": {"thinkingLevel": "low", "includeThoughts": True},
    }
    asked = parse(
        systemInstruction={"parts": [{"text": "Be kind. "}, {"text": "Be brief."}]},
        tools=[{"functionDeclarations": [DECLARED]}, {"functionDeclarations": [OTHER]}],
        generationConfig=settings,
        safetySettings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        serviceTier="FLEX",
        labels={"team": "a"},
        store=False,
        unheard_of=1,
    )

    assert asked == Asked(
        Question(
            "m",
            [Message("user", "hello")],
            system="Be kind. Be brief.",
            temperature=1.5,
            max_tokens=100,
            thinking_level="low",
            tools=[Tool("weather", Text("At a place."), {"type": "object"}), Tool("time")],
            stop=["END"],
            response_schema={"type": "integer"},
            sampling=Sampling(top_p=0.9, seed=7, presence_penalty=0.5, frequency_penalty=-0.5),
        ),
        False,
        "batch",
        ["generationConfig.topK", "safetySettings", "unheardOf"],
    )


def test_names_in_snake_case_and_one_object_for_an_array_of_it_mean_the_same() -> None:
    asked = question(
        contents={"parts": {"text": "hello"}},
        system_instruction={"parts": {"text": "Be kind."}},
        tools={"function_declarations": {"name": "weather", "parameters_json_schema": {"type": "object"}}},
        tool_config={"function_calling_config": {"mode": "ANY", "allowed_function_names": ["weather"]}},
        generation_config={"max_output_tokens": 9, "thinking_config": {"thinking_budget": 0}},
    )

    assert asked == Question(
        "m",
        [Message("user", "hello")],
        system="Be kind.",
        max_tokens=9,
        thinking_level="none",
        tools=[Tool("weather", Text(""), {"type": "object"})],
        tool_choice="required",
    )


def test_a_conversation_with_functions() -> None:
    conversation = [
        USER,
        model({"text": "Hm.", "thought": True}, {"text": "Let me "}),
        model({"text": "look.", "thoughtSignature": "c2ln"}),  # a client keeps each piece of a stream
        model({**calls("weather", id="w1"), "thoughtSignature": "_-8"}, calls("time", id="t1", args={})),
        {
            "role": "function",
            "parts": [
                answers("time", {"output": "noon"}, id="t1"),
                answers("weather", {"sky": "grey"}, id="w1", parts=[IMAGE]),
                {"text": "And?"},
            ],
        },
    ]

    assert list(question(contents=conversation).messages) == [
        Message("user", "hello"),
        Message(
            "assistant",
            "Let me look.",
            calls=(ToolCall("w1", "weather", {"place": "Rome"}, "/+8="), ToolCall("t1", "time", {})),
        ),
        Message("tool", "noon", answers="t1"),
        Message("tool", '{"sky":"grey"}', (Image(PNG, "image/png"),), answers="w1"),
        Message("user", "And?"),
    ]


def test_a_response_without_an_id_belongs_to_the_first_call_of_its_function_without_a_response() -> None:
    conversation = [
        USER,
        model(calls("weather")),  # which was given up
        USER,
        model(calls("weather"), calls("time", id="t1"), calls("weather"), calls("weather", id="w3")),
        user(answers("weather", {"output": "third"}, id="w3"), answers("time", {"output": "noon"})),
        user(answers("weather", {"output": "first"}), answers("weather", {"output": "second"})),
    ]

    _, _, _, asked, *results = question(contents=conversation).messages
    first, time, second, third = (call.id for call in asked.calls)
    assert len({first, time, second, third}) == 4
    assert [(each.answers, each.text) for each in results] == [
        (third, "third"),
        (time, "noon"),
        (first, "first"),
        (second, "second"),
    ]
    again = user(answers("weather", {"output": "fourth"}))
    assert refused(contents=[*conversation, again]).startswith("contents[6].parts[0].functionResponse: expected an id")


def test_images_stay_between_their_texts() -> None:
    [message] = question(contents=[user({"text": "Is"}, IMAGE, {"text": " it?"})]).messages

    blocks = (Block("text", 0, 2), Block("image"), Block("text", 2, 6))
    assert message == Message("user", "Is it?", (Image(PNG, "image/png"),), blocks=blocks)


@each_row(
    ("mode", "allowed", "offered", "choice"),
    [
        ("AUTO", [], ["weather", "time"], "auto"),
        ("MODE_UNSPECIFIED", [], ["weather", "time"], "auto"),
        ("VALIDATED", ["time"], ["time"], "auto"),
        ("NONE", [], ["weather", "time"], "none"),
        ("ANY", [], ["weather", "time"], "required"),
        ("ANY", ["time"], ["time"], "required"),
    ],
)
def test_which_functions_may_be_called(mode: str, allowed: list[str], offered: list[str], choice: str) -> None:
    calling = {"mode": mode, "allowedFunctionNames": allowed}
    asked = question(tools=[{"functionDeclarations": [DECLARED, OTHER]}], toolConfig={"functionCallingConfig": calling})

    assert ([tool.name for tool in asked.tools], asked.tool_choice) == (offered, choice)


@each_row(
    ("thinking", "level"),
    [
        ({}, None),
        ({"thinkingBudget": -1}, None),
        ({"thinkingBudget": 0}, "none"),
        ({"thinkingBudget": 4095}, "low"),
        ({"thinkingBudget": 4096}, "medium"),
        ({"thinkingBudget": 16383}, "medium"),
        ({"thinkingBudget": 16384}, "high"),
        ({"thinkingLevel": "THINKING_LEVEL_UNSPECIFIED"}, None),
        ({"thinkingLevel": "MINIMAL"}, "minimal"),
        ({"thinkingLevel": "HIGH", "thinkingBudget": 1}, "high"),
        ({"thinkingLevel": "xhigh"}, "xhigh"),
    ],
)
def test_how_much_is_thought(thinking: dict[str, Any], level: str | None) -> None:
    assert set_to(thinkingConfig=thinking).thinking_level == level


@each_row(
    ("settings", "schema"),
    [
        ({}, None),
        ({"responseMimeType": "text/plain"}, None),
        ({"responseMimeType": "application/json"}, {"type": "object"}),
        ({"responseSchema": {"type": "STRING"}}, {"type": "string"}),
        ({"responseJsonSchema": {"type": "STRING"}}, {"type": "STRING"}),
    ],
)
def test_a_schema_for_the_answer(settings: dict[str, Any], schema: Any) -> None:
    assert set_to(**settings).response_schema == schema


def test_googles_schemas_become_json_schemas() -> None:
    properties = {
        "type": {"type": "STRING", "nullable": True, "enum": ["a", "b"]},
        "any_of": {"anyOf": [{"type": "NUMBER"}, {"type": "BOOLEAN"}], "nullable": True},
        "list": {"type": "ARRAY", "items": {"type": "OBJECT", "max_properties": "3"}, "minItems": "1", "maxItems": 2},
        "tree": {"ref": "#/$defs/tree"},
    }
    given = {"type": "OBJECT", "properties": properties, "property_ordering": ["list"], "required": ["type"]}

    assert json_schema({**given, "defs": {"tree": {"type": "STRING", "example": "x"}}, "title": None}) == {
        "type": "object",
        "properties": {
            "type": {"type": ["string", "null"], "enum": ["a", "b", None]},
            "any_of": {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "null"}]},
            "list": {"type": "array", "items": {"type": "object", "maxProperties": 3}, "minItems": 1, "maxItems": 2},
            "tree": {"$ref": "#/$defs/tree"},
        },
        "required": ["type"],
        "$defs": {"tree": {"type": "string"}},
    }
    declared = {"name": "weather", "parameters": given}
    assert question(tools=[{"functionDeclarations": [declared]}]).tools[0].parameters["type"] == "object"


def test_tokens_are_counted_of_contents_alone_or_of_a_whole_request() -> None:
    history = [USER, model({"text": "Hello yourself."})]
    whole = {"model": "models/m", "contents": history, "systemInstruction": {"parts": [{"text": "Be kind."}]}}

    assert len(parse_count(json.dumps({"contents": history}).encode(), "m", "gemini").messages) == 2
    found = parse_count(json.dumps({"generateContentRequest": whole}).encode(), "m", "gemini")
    assert (found.system, len(found.messages)) == ("Be kind.", 2)


def test_texts_to_embed() -> None:
    first = {"model": "models/m", "content": {"parts": [{"text": "a"}, {"text": "b"}]}, "taskType": "RETRIEVAL_QUERY"}
    both = [{**first, "outputDimensionality": 8}, {"content": user({"text": "c"}), "outputDimensionality": 8}]

    one = parse_one(json.dumps(first).encode(), "m", "gemini")
    assert (one.question.messages, one.left_out) == ([Message("user", "ab")], ["taskType"])
    asked = parse_batch(json.dumps({"requests": both}).encode(), "m", "gemini")
    assert asked.left_out == ["requests.taskType"]
    assert asked.question == Question(
        "m", [Message("user", "ab"), Message("user", "c")], max_tokens=1, embed=True, dimensions=8
    )


@each_row(
    ("fields", "beginning"),
    [
        ({}, "requests: expected at least one"),
        ({"requests": [{}]}, "requests[0].content: required"),
        ({"requests": [{"content": {"parts": []}}]}, "requests[0].content.parts: expected some text"),
        ({"requests": [{"content": user(IMAGE)}]}, "requests[0].content.parts[0].inlineData: not supported"),
        ({"requests": [{"model": "models/other", "content": USER}]}, "requests[0].model: expected m, as in the path"),
        (
            {"requests": [{"content": USER}, {"content": USER, "outputDimensionality": 8}]},
            "requests[1].outputDimensionality: expected the same",
        ),
    ],
)
def test_a_mistake_in_a_request_for_embeddings_is_named(fields: dict[str, Any], beginning: str) -> None:
    with pytest.raises(BadRequest) as error:
        parse_batch(json.dumps(fields).encode(), "m", "gemini")
    assert str(error.value).startswith(beginning)


@each_row(
    ("fields", "beginning"),
    [
        ({"contents": []}, "contents: expected at least one content"),
        ({"contents": "hello"}, "contents: expected an array"),
        ({"contents": [model({"text": "thought", "thought": True})]}, "contents: expected at least one content"),
        ({"contents": [{"role": "system", "parts": []}]}, "contents[0].role: expected user or model"),
        ({"contents": [USER, model({"text": "It is"})]}, "contents: expected the user's content last"),
        ({"contents": [user({"fileData": {"fileUri": "x"}})]}, "contents[0].parts[0].fileData: not supported"),
        ({"contents": [user({"executable_code": {}})]}, "contents[0].parts[0].executableCode: not supported"),
        ({"contents": [user({"text": "a", **IMAGE})]}, "contents[0].parts[0]: expected one kind of data"),
        ({"contents": [user(calls("weather"))]}, "contents[0].parts[0].functionCall: not supported in what the user"),
        ({"contents": [model(IMAGE)]}, "contents[0].parts[0].inlineData: not supported in what the model"),
        ({"contents": [model({"functionCall": {}})]}, "contents[0].parts[0].functionCall.name: required field missing"),
        ({"contents": [user(answers("x", None, id="1"))]}, "contents[0].parts[0].functionResponse.response: required"),
        (
            {"contents": [user(answers("x", {}, id="1", parts=[{"text": "a"}]))]},
            "contents[0].parts[0].functionResponse.parts[0].text: not supported",
        ),
        (
            {"contents": [user({"inlineData": {"mimeType": "application/pdf", "data": "AAAA"}})]},
            "contents[0].parts[0].inlineData.data: expected the type of an image",
        ),
        (
            {"contents": [user({"inlineData": {"mimeType": "image/png", "data": "!"}})]},
            "contents[0].parts[0].inlineData.data: expected base64",
        ),
        ({"systemInstruction": {"parts": [IMAGE]}}, "systemInstruction.parts[0].inlineData: not supported here"),
        ({"cachedContent": "cachedContents/1"}, "cachedContent: not supported: no contents are kept here"),
        ({"tools": [{"googleSearch": {}}]}, "tools[0].googleSearch: not supported"),
        ({"tools": [{"url_context": {}}]}, "tools[0].urlContext: not supported"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name: expected some text"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig.functionCallingConfig.mode: "),
        ({"toolConfig": {"functionCallingConfig": {"mode": "SOME"}}}, "toolConfig.functionCallingConfig.mode: "),
        ({"generationConfig": {"candidateCount": 2}}, "generationConfig.candidateCount: expected 1"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "generationConfig.responseModalities[0]: "),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType: "),
        ({"generationConfig": {"responseLogprobs": True}}, "generationConfig.responseLogprobs: not supported"),
        ({"generationConfig": {"speechConfig": {"a": 1}}}, "generationConfig.speechConfig: not supported"),
        ({"generationConfig": {"stopSequences": ["a"] * 5}}, "generationConfig.stopSequences: expected an array"),
        ({"generationConfig": {"temperature": 2.5}}, "generationConfig.temperature: expected a number from 0 to 2"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens: expected a whole number"),
        ({"generationConfig": {"thinkingConfig": {"thinkingBudget": -2}}}, "generationConfig.thinkingConfig.thinkingB"),
        ({"generationConfig": {"thinkingConfig": {"thinkingLevel": "x"}}}, "generationConfig.thinkingConfig.thinkingL"),
    ],
)
def test_a_mistake_is_named(fields: dict[str, Any], beginning: str) -> None:
    assert refused(**fields).startswith(beginning)


def test_a_parameter_that_the_provider_lacks_is_refused_by_its_field() -> None:
    for name, value in {"seed": 1, "presencePenalty": 0.5}.items():
        assert refused("anthropic", generationConfig={name: value}).startswith(f"generationConfig.{name}: the kernel's")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "parts", "text", "inlineData", "functionCall", "functionResponse", "name", "id"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
FIELDS = ("contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "cachedContent")


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_whatever_is_sent_is_a_question_or_a_bad_request(fields: dict[str, Any]) -> None:
    try:
        assert parse(**fields)
    except BadRequest as error:
        assert ": " in str(error)


@given(st.dictionaries(st.text(max_size=5) | st.sampled_from(["type", "properties", "anyOf", "items"]), json_values))
def test_whatever_is_sent_as_a_schema_is_converted(schema: dict[str, Any]) -> None:
    assert isinstance(json_schema(schema), dict)


@given(st.binary(min_size=1) | st.text(min_size=1).map(lambda text: json.dumps([{"thinking": text}])))
@example('{"call":{"extra_content":{"a":"\u2713"}}}')
def test_a_signature_comes_back_as_it_was_given(signature: bytes | str) -> None:
    own = signature if isinstance(signature, str) else base64.b64encode(signature).decode()
    sent = encode_signature(own)
    by_python = base64.urlsafe_b64encode(base64.b64decode(sent, validate=True)).decode()  # the SDK keeps bytes

    assert decode_signature(sent) == decode_signature(by_python) == own


def test_fields_have_one_name_in_errors() -> None:
    assert GoogleFields({"inline_data": 1, "videoMetadata": None}).names == ["inlineData"]
