"""llama.cpp's server with a model that is written here, run by the Python of an environment that has both.

The model's weights are a table of which token follows which: behind the end of a question it says ANSWER, piece by
piece, and where tools are offered it calls one. Its arguments are the file of the model and the key; it prints its URL.
"""

import sys
import time
from itertools import pairwise

import gguf
import numpy
import xllamacpp

ANSWER = ("It is ", "forty-", "two, 数")
CALL = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6}}\n</tool_call>'
BEGIN, END, BYTES = 1, 2, 3
TEMPLATE = """\
{% if tools %}Call a function as <tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>:
<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
{% endif %}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% for call in message.tool_calls %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{% endfor %}{% endfor %}assistant{% if tools and messages[-1].role != "tool" %}!{% else %}:{% endif %}"""


def write_model(path: str) -> None:
    kind = gguf.TokenType
    texts = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256))]
    kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.BYTE] * 256]
    said = [*range(len(texts), len(texts) + len(ANSWER) + 1)]
    texts += [text.replace(" ", "▁").encode() for text in (*ANSWER, CALL)]
    kinds += [kind.NORMAL] * len(said)
    size = -(-len(texts) // 32) * 32
    follows = numpy.zeros((len(texts), size), numpy.float32)
    for before, after in [*pairwise([BYTES + ord(":"), *said[:-1], END]), *pairwise([BYTES + ord("!"), said[-1], END])]:
        follows[after, before] = 10
    model = gguf.GGUFWriter(path, "llama")
    model.add_context_length(2048)
    model.add_embedding_length(size)
    model.add_block_count(1)
    model.add_feed_forward_length(32)
    model.add_head_count(2)
    model.add_head_count_kv(2)
    model.add_layer_norm_rms_eps(1e-5)
    model.add_rope_dimension_count(size // 2)
    model.add_vocab_size(len(texts))
    model.add_tokenizer_model("llama")
    model.add_token_list(texts)
    model.add_token_scores([0.0] * len(texts))
    model.add_token_types(kinds)
    model.add_bos_token_id(BEGIN)
    model.add_eos_token_id(END)
    model.add_unk_token_id(0)
    model.add_chat_template(TEMPLATE)
    shapes = {f"attn_{name}": (size, size) for name in ("q", "k", "v", "output")}
    shapes |= {"ffn_gate": (32, size), "ffn_up": (32, size), "ffn_down": (size, 32)}
    for name, shape in shapes.items():
        model.add_tensor(f"blk.0.{name}.weight", numpy.zeros(shape, numpy.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        model.add_tensor(f"{name}.weight", numpy.ones(size, numpy.float32))
    model.add_tensor("token_embd.weight", numpy.eye(len(texts), size, dtype=numpy.float32))
    model.add_tensor("output.weight", follows)
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()


def serve(path: str, key: str) -> None:
    options = xllamacpp.CommonParams()
    options.model.path, options.api_keys = path, [key]
    options.port, options.n_ctx, options.n_parallel, options.cpuparams.n_threads = 0, 2048, 2, 1
    server = xllamacpp.Server(options)
    print(server.listening_address, flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    write_model(sys.argv[1])
    serve(*sys.argv[1:])
