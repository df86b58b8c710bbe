#!/usr/bin/env python3
"""Renders templates with the jinja2 package, set up as transformers does, and with chat_render, and compares.

usage: chat_fuzz.py PATH/chat_render [--count N] [--contexts N] [--seed S] [--show N]
       chat_fuzz.py --write tests/text/chat    (renders the templates of that folder into expected.json)

Random templates from a grammar, and spoiled ones of tests/text/chat, meet random conversations, --contexts of them each;
one is enough for a template that jinja2 does not compile. Every text, every generation span and every error must agree;
the message must, too, where the template called raise_exception. Renderings that our limits stop are counted apart.
"""
import argparse
import datetime
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time
import warnings

import jinja2
import jinja2.ext
import jinja2.sandbox

warnings.simplefilter("ignore")
os.environ["TZ"] = "UTC"
time.tzset()
NOW = 1738368000  # 2025-02-01
TEXTS = pathlib.Path(__file__).resolve().parent.parent / "text" / "chat"


class Tracker(jinja2.ext.Extension):
    """Tells where the text of {% generation %} blocks stands among the blocks rendered so far."""
    tags = {"generation"}
    blocks, spans = [], []

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_track"), [], [], body).set_lineno(line)

    def _track(self, caller):
        text = caller()
        begin = len("".join(Tracker.blocks))
        Tracker.spans.append([begin, begin + len(text)])
        return text


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    result = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Tracker, jinja2.ext.loopcontrols])
    result.filters["tojson"] = tojson
    result.globals["raise_exception"] = raise_exception
    result.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW).strftime(form)
    return result


ENVIRONMENT = environment()


def compiled(template):
    """The template, or what it cannot be compiled for."""
    try:
        return ENVIRONMENT.from_string(template), None
    except RecursionError:
        return None, {"skip": True}
    except Exception as error:  # noqa: BLE001
        return None, {"error": str(error), "raised": False}


def render(template, names):
    Tracker.blocks, Tracker.spans = [], []
    try:
        for block in template.generate(**names):
            Tracker.blocks.append(block)
        text = "".join(Tracker.blocks)
        text.encode()
        return {"text": text, "generations": Tracker.spans}
    except RecursionError:
        return {"skip": True}
    except Exception as error:  # noqa: BLE001
        return {"error": str(error), "raised": type(error) is jinja2.exceptions.TemplateError}


# ---------------------------------------------------------------- conversations
WORDS = ["hello", "World", "é", "你好", "😀", " ", "  ", "\n", "\t", "<think>", "</think>", "it's", '"q"', "\\", "A", "ß", "Σ", "x" * 9, "1", "2.5", "%s", "{{", "&<>", ""]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def text(self, most=5):
        return "".join(self.r.choice(WORDS) for _ in range(self.r.randint(0, most)))

    def json(self, depth=2):
        kind = self.r.randint(0, 8 if depth else 5)
        if kind <= 1:
            return self.text(3)
        if kind == 2:
            return self.r.choice([0, 1, -1, 7, 2**31, -(2**40), 10**15])
        if kind == 3:
            return self.r.choice([0.0, 0.5, -1.25, 1e16, 1e-5, 123456.789, 1e22, 5e-324, 3.0])
        if kind == 4:
            return self.r.choice([True, False])
        if kind == 5:
            return None
        if kind == 6:
            return [self.json(depth - 1) for _ in range(self.r.randint(0, 3))]
        return {self.r.choice(["a", "b", "name", "type", "é", "items", "0"]): self.json(depth - 1) for _ in range(self.r.randint(0, 3))}

    def tool(self):
        def schema(depth):
            kind = self.r.choice(["string", "integer", "number", "boolean", "array", "object", ["string", "null"]] if depth else ["string", "integer"])
            spec = {"type": kind}
            if self.r.random() < 0.4:
                spec["description"] = self.text()
            if kind == "array" and self.r.random() < 0.7:
                spec["items"] = schema(depth - 1)
            if kind == "object" and self.r.random() < 0.7:
                spec["properties"] = {n: schema(depth - 1) for n in self.r.sample(["x", "y", "z"], self.r.randint(0, 2))}
            if kind == "string" and self.r.random() < 0.3:
                spec["enum"] = ["u", "v"]
            if self.r.random() < 0.2:
                spec["default"] = self.r.choice(["d", 1, None])
            return spec
        names = self.r.sample(["city", "days", "unit"], self.r.randint(0, 3))
        return {"type": "function", "function": {"name": self.r.choice(["get", "set_it"]), "description": self.text(), "parameters": {
            "type": "object", "properties": {n: schema(2) for n in names}, "required": names[:1]}}}

    def message(self):
        role = self.r.choice(["user", "user", "assistant", "assistant", "system", "tool", "developer", "other"])
        result = {"role": role, "content": self.text()}
        if self.r.random() < 0.1:
            result["content"] = [{"type": "text", "text": self.text()}, {"type": "image"}][: self.r.randint(0, 2)]
        if self.r.random() < 0.05:
            result["content"] = None
        if self.r.random() < 0.05:
            del result["content"]
        if role == "assistant" and self.r.random() < 0.4:
            result["tool_calls"] = [{"type": "function", "id": self.r.choice(["abcdefghi", "x"]), "function": {"name": "get", "arguments": self.json(1)}}
                                    for _ in range(self.r.randint(1, 2))]
        if role == "assistant" and self.r.random() < 0.2:
            result[self.r.choice(["thinking", "reasoning_content"])] = self.text()
        return result

    def alternating(self):
        roles = ["user", "assistant"] * 3
        result = [{"role": role, "content": self.text()} for role in roles[: self.r.randint(1, 6)]]
        if self.r.random() < 0.4:
            result.insert(0, {"role": "system", "content": self.text()})
        return result

    def names(self):
        messages = self.alternating() if self.r.random() < 0.4 else [self.message() for _ in range(self.r.randint(0, 5))]
        result = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": self.r.random() < 0.5,
                  "bos_token": "<s>", "eos_token": "</s>"}
        if self.r.random() < 0.4:
            result["tools"] = [self.tool() for _ in range(self.r.randint(0, 2))]
        if self.r.random() < 0.2:
            result["documents"] = [{"title": self.text(), "text": self.text()}]
        if self.r.random() < 0.3:
            result["enable_thinking"] = self.r.random() < 0.5
        result["x"] = self.json()
        result["n"] = self.r.randint(-3, 9)
        return result


# ---------------------------------------------------------------- templates
FILTERS = """abs attr('role') capitalize center(7) count d('dd') default('u',true) dictsort e first float format(1) groupby('role') indent indent(2,true) int
 int(base=16) items join join('-') join(',',attribute='role') last length list lower map('upper') map(attribute='role') map('length') max min reject('none')
 rejectattr('role','equalto','user') replace('e','3') replace('',"-") reverse round round(1) round(1,'ceil') round(0,'floor') select('string') select selectattr('content')
 selectattr('role','in',['user','tool']) sort sort(reverse=true) sort(attribute='role') string sum title tojson tojson(indent=2) tojson(sort_keys=true)
 tojson(ensure_ascii=true) tojson(separators=(',',':')) trim trim('x') truncate(5) truncate(9,true,'') unique upper urlencode wordcount batch(2) slice(2)
 batch(3,'f') list|first safe escape forceescape filesizeformat unknown|d map('unknown')""".split()
FILTERS += ["replace('a','b',1)", "map('default','-')", "map('int')", "select('odd')", "select('divisibleby',2)", "selectattr('role')|list", "indent(width='> ')", "map(attribute='x',default=0)", "sum(start=1)", "batch(2)|list", "items|list", "dictsort(true,'value')"]
TESTS = """defined undefined none true false boolean integer float number string mapping iterable sequence callable odd even lower upper
 divisibleby(2) eq(1) equalto('a') ne(2) gt(0) ge(1) lt(3) le(0) in([1,'user']) sameas(none) filter test escaped""".split()
TESTS += ["divisibleby 3", "eq 'x'", "not none", "not string", "in 'abc'"]
METHODS = """strip() lstrip('h') rstrip() strip('\\n ') split() split('l') split(' ',1) rsplit('l',1) upper() lower() title() capitalize() swapcase() startswith('h')
 endswith('d') startswith(('a','h')) find('l') rfind('l') count('l') replace('l','L') replace('l','L',1) join(['a','b']) isdigit() isalpha() isupper() islower() isspace()
 splitlines() zfill(5) ljust(6) rjust(6,'*') center(9) partition('l') rpartition('l') removeprefix('he') removesuffix('d') format(1,a=2) casefold() istitle()
 items() keys() values() get('role') get('zz',1) index('l') index(1) copy() append(1) pop() update({}) encode isnumeric() expandtabs(4) isidentifier() isascii()""".split()
NAMES = ["messages", "messages[0]", "messages[-1].content", "m", "m.role", "m['content']", "x", "n", "tools", "ns.a", "ns.b", "loop", "loop.index", "loop.last", "undefined_name",
         "x.a", "x['b']", "x[0]", "messages[n]", "bos_token", "y", "messages[0].role", "loop.length", "loop.previtem", "loop.nextitem.role", "loop.revindex0", "enable_thinking", "t"]
LITERALS = ["1", "0", "-1", "2.5", "1e3", "'a'", "'hello world'", '"it\\"s"', "''", "true", "false", "none", "[]", "[1,2,3]", "['b','A','c']", "{}", "{'a':1,'b':[2]}", "(1,)", "(1,'x')", "()",
            "'\\n'", "'é你'", "'\\u00e9\\x41\\t'", "0x1F", "1_000", "'a' 'b'", "range(3)", "range(5,0,-2)", "[[1,2],[3]]", "{'role':'user'}", "'a,b,c'", "1e16", "0.1", "100000000000000000", "'<b>&'", "[true,none,1.5]"]
FORMATS = ["'%s' % {e}", "'%s-%s' % ({e}, {e})", "'%5.2f|%-4d|' % ({n}, {n})", "'%r' % [{e}]", "'%(a)s' % {{'a': {e}}}", "'{{}}{{!r:>5}}'.format({e}, 'q')", "'{{:,}} {{:.2f}}'.format({n}, {n})", "'%x %o %e %g %c' % (255, 8, {n}, {n}, 65)",
           "'{{0[0]}}{{a.b}}'.format([1], a={{'b': {e}}})", "'{{:05d}}|{{:+}}|{{:%}}'.format({n}, {n}, {n})"]


TYPED = {
    "text": ["'a'", "'hello world'", "m.role", "m['content']|string", "bos_token", "({text} + {text})", "({text} ~ {any})", "{text}.strip()", "{text}|trim", "{text}.upper()", "{text}|capitalize",
             "{text}|title", "{text}[{int}:]", "{text}[:{int}]", "{text}[::-1]", "{text}.replace('l', {text})", "{list}|join({text})", "{any}|tojson", "{any}|tojson(indent={int})", "{any}|string",
             "({text} if {bool} else {text})", "{text}.split('l')[-1]", "{text}.split()|first|default({text})", "'%s=%s' % ({text}, {any})", "'{{}}:{{:>7}}'.format({any}, {text})", "{text}*2",
             "{text}|replace('o', '0')|upper", "{text}|truncate(9, {bool}, '…')", "{text}|indent(3, {bool}, {bool})", "{text}.rstrip('\n')", "{list}|map('string')|join", "f({any}, {any})", "ns.b|string",
             "{text}.removeprefix('he')", "{text}|e", "{text}|default('d', true)", "{text}.partition('l')[0]", "{text}.title()", "{text}|center(13)", "{text}.ljust(9, '.')", "{text}|lower|wordcount|string",
             "strftime_now('%Y-%m-%d')", "{list}|string", "{dict}|string", "{number}|string", "{text}.lstrip('h ')", "loop.cycle({text}, 'z')|string", "joined({text}, {text})", "{text}|reverse|upper"],
    "int": ["1", "0", "2", "-1", "n", "3", "{list}|length", "{text}|length", "({int} + {int})", "({int} * {int})", "({int} % 5)", "({int} // 3)", "{text}.find('l')", "{text}.count('l')", "loop.index", "loop.revindex",
            "loop.length", "{number}|int", "{text}|int", "({int} if {bool} else {int})", "{list}|count", "ns.a", "({int})|abs"],
    "number": ["{int}", "2.5", "1e3", "0.1", "({number} + {number})", "({number} - {number})", "({number} * {number})", "({number} / 4)", "{number}|round(1)", "{number}|round", "{text}|float", "(-{number})", "({number} % 7)",
               "({number} // 2)", "[{number}, {number}]|max", "[{number}, 1]|min", "[{number}, {number}]|sum", "2 ** {int}|abs"],
    "bool": ["true", "false", "{text} == {text}", "{int} < {int}", "{text} in {text}", "{text} not in {list}", "{any} is defined", "{any} is none", "{any} is string", "not {bool}", "({bool} and {bool})", "({bool} or {bool})",
             "{list} | length > {int}", "loop.first", "loop.last", "m.tool_calls is defined", "enable_thinking is defined and enable_thinking", "{int} is odd", "{any} is mapping", "{any} is iterable", "{text}.startswith({text})",
             "'role' in m", "{dict} == {dict}", "{any} == {any}", "1 < {int} <= 5", "{text} is in ['user', 'tool']", "{number} is number", "messages[0].role == 'system'", "{any} is sameas none", "loop.changed({any})"],
    "list": ["messages", "messages[1:]", "[1, 2, 3]", "[{any}, {any}]", "{text}.split()", "{text}|list", "({list} + {list})", "{list}[::-1]", "{list}[{int}:{int}]", "messages|map(attribute='role')|list", "messages|selectattr('role', 'equalto', {text})|list",
             "messages|rejectattr('content')|list", "range({int} % 5)|list", "{dict}.items()|list", "{dict}|items|list", "{dict}|dictsort", "[{text}, {text}]|sort", "[{number}, {number}, 1]|sort(reverse={bool})", "[{int}, {int}]|unique|list",
             "{list}|reverse|list", "{list}|batch(2)|list", "messages|groupby('role')|map('first')|list", "(tools or [])", "{list}|select('string')|list", "{dict}.keys()|list", "{dict}.values()|list", "[{text}]|map('upper')|list", "{text}.splitlines()",
             "({list} if {bool} else {list})", "{list}|map('string')|list", "[{list}, {list}]", "({any}, {any})|list", "messages|sort(attribute='role')|map(attribute='role')|list"],
    "dict": ["{{}}", "{{'a': {any}}}", "messages[0]|default({{}}, true)", "{{'k': {any}, 'l': {any}}}", "dict(a={any}, b={any})", "{{{text}: {any}, {int}: {any}}}", "dict({list}|batch(2)|select('sequence')|list) if false else {{'z': 1}}", "{{1: {any}, 'x': {any}}}.copy()"],
}
TYPED["any"] = ["{text}", "{int}", "{number}", "{bool}", "{list}", "{dict}", "none", "x", "undefined_name", "x.a", "m", "m.content", "({text}, {int})", "{list}|first", "{list}[0]", "{dict}.get({text}, {any})", "{dict}['a']", "range(3)", "messages[{int}]", "({any} if {bool})"]


class Grammar(Maker):
    typed = False

    def of_type(self, kind, depth):
        choices = TYPED[kind]
        if depth <= 0:
            plain = [c for c in choices if "{" not in c.replace("{{", "")]
            choices = plain or choices[:4]
        form = self.r.choice(choices)

        def fill(match):
            if not match.group(1):
                return match.group(0)[0]
            inner = self.of_type(match.group(1), depth - 1)
            return inner if re.fullmatch(r"[\w.]+", inner) else f"({inner})"
        return re.sub(r"\{\{|\}\}|\{(\w+)\}", fill, form)

    def expression(self, depth=3):
        r = self.r
        if self.typed:
            return self.of_type(r.choice(["any", "text", "text", "bool", "int", "list"]), depth)
        if depth <= 0:
            return r.choice(NAMES if r.random() < 0.55 else LITERALS)
        e = lambda: self.expression(depth - 1 - (r.random() < 0.5))
        kind = r.randint(0, 20)
        if kind <= 3:
            return r.choice(NAMES if r.random() < 0.6 else LITERALS)
        if kind == 4:
            return f"{self.wrapped(depth)} {r.choice(['+', '-', '*', '/', '//', '%', '**'])} {self.wrapped(depth)}"
        if kind == 5:
            return f"{self.wrapped(depth)} {r.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {self.wrapped(depth)}"
        if kind == 6:
            return f"{e()} {r.choice(['and', 'or'])} {e()}"
        if kind == 7:
            return f"not {e()}"
        if kind == 8:
            return f"{self.wrapped(depth)} ~ {self.wrapped(depth)}"
        if kind == 9:
            return f"({e()} if {e()}" + (f" else {e()})" if r.random() < 0.8 else ")")
        if kind <= 13:
            return f"{self.wrapped(depth)} | {r.choice(FILTERS)}"
        if kind == 14:
            return f"{self.wrapped(depth)} is {r.choice(TESTS)}"
        if kind <= 16:
            return f"{self.wrapped(depth)}.{r.choice(METHODS)}"
        if kind == 17:
            bounds = [r.choice(["", "1", "-1", "2", "n", "0", "none"]) for _ in range(r.randint(2, 3))]
            return f"{self.wrapped(depth)}[{':'.join(bounds)}]"
        if kind == 18:
            return f"{self.wrapped(depth)}[{e()}]"
        if kind == 19:
            return r.choice(FORMATS).format(e=e(), n=r.choice(["n", "1", "2.5", "-7", "1234567.891", "0"]))
        return r.choice([f"[{e()}, {e()}]", f"{{'k': {e()}, {e()}: 1}}", f"({e()},)", f"-{self.wrapped(depth)}", f"f({e()})", f"f({e()}, b={e()})", f"dict(a={e()})", f"namespace(a={e()}).a",
                         f"strftime_now('%Y %d %b')", f"raise_exception({e()})", f"g(*[{e()}], **{{'k': {e()}}})", f"loop.cycle({e()}, 2)", f"loop.changed({e()})", f"range({e()})|list"])

    def wrapped(self, depth):
        inner = self.expression(depth - 1 - (self.r.random() < 0.5))
        return inner if re.fullmatch(r"[\w.\[\]']+", inner) else f"({inner})"

    def tag(self, body):
        r = self.r
        return "{%" + r.choice(["", "", "-", "-", "+"]) + " " + body + " " + r.choice(["", "", "-", "-", "+"]) + "%}"

    def data(self):
        return "".join(self.r.choice(["a", "B ", " ", "  ", "\n", "\n", "\t", "é", "{ ", "}", "%", "#", "\r\n", "text", "{", "'"]) for _ in range(self.r.randint(0, 5)))

    def statement(self, depth, loop):
        r = self.r
        kind = r.randint(0, 21 if depth > 0 else 6)
        if kind <= 2:
            return self.data()
        if kind <= 5:
            return "{{" + r.choice(["", "-", "+", " "]) + " " + self.expression() + " " + r.choice(["", "-"]) + "}}"
        if kind == 6:
            return r.choice([self.tag(f"set {r.choice(['y', 't', 'ns.a', 'ns.b', 'y, t', 'm'])} = {self.expression()}"), "{#" + r.choice(["", "-", "+"]) + " c " + r.choice(["", "-", "+"]) + "#}",
                             self.tag("raw") + "{{ x }}" + self.data() + self.tag("endraw")])
        if kind <= 11:
            middle = "".join(self.tag(f"elif {self.expression(2)}") + self.body(depth - 1, loop) for _ in range(r.choice([0, 0, 1])))
            other = self.tag("else") + self.body(depth - 1, loop) if r.random() < 0.5 else ""
            return self.tag(f"if {self.expression(2)}") + self.body(depth - 1, loop) + middle + other + self.tag("endif")
        if kind <= 15:
            source = r.choice(["messages", "messages", "messages", "x", "range(3)", "tools", "messages[1:]", self.expression(1)])
            target = r.choice(["m", "m", "m", "m, t", "t"])
            condition = f" if {self.expression(1)}" if r.random() < 0.25 else ""
            recursive = " recursive" if r.random() < 0.1 else ""
            inside = self.body(depth - 1, True)
            if recursive and r.random() < 0.7:
                inside += "{{ loop(m.children) if m.children }}{{ loop.depth }}"
            other = self.tag("else") + self.body(depth - 1, loop) if r.random() < 0.2 else ""
            return self.tag(f"for {target} in {source}{condition}{recursive}") + inside + other + self.tag("endfor")
        if kind == 16:
            return self.tag(f"macro {r.choice(['f', 'g', 'h'])}(a, b={self.expression(1)})") + self.body(depth - 1, False) + r.choice(["", "{{ a }}", "{{ b }}", "{{ caller() if caller }}", "{{ varargs }}{{ kwargs }}"]) + self.tag("endmacro")
        if kind == 17:
            return self.tag(f"call{r.choice(['', '(q)'])} {r.choice(['f', 'g'])}({self.expression(1)})") + self.body(depth - 1, False) + self.tag("endcall")
        if kind == 18:
            return self.tag(f"set {r.choice(['y', 't', 'ns.a'])}{r.choice(['', ' | upper', ' | trim | replace(1,2)'])}") + self.body(depth - 1, loop) + self.tag("endset")
        if kind == 19:
            return self.tag(f"filter {r.choice(['upper', 'trim', 'replace(1,2)', 'indent(2) | upper'])}") + self.body(depth - 1, loop) + self.tag("endfilter")
        if kind == 20:
            return self.tag(f"with y = {self.expression(1)}, t = y") + self.body(depth - 1, loop) + self.tag("endwith")
        if loop and r.random() < 0.6:
            return self.tag(r.choice(["break", "continue"]))
        return self.tag("generation") + self.body(depth - 1, False) + self.tag("endgeneration")

    def body(self, depth, loop):
        return "".join(self.statement(depth, loop) for _ in range(self.r.randint(1, 3)))

    def template(self):
        kind = self.r.random()
        self.typed = self.r.random() < 0.6
        if self.typed:
            lead = ("{% macro f(a, b=2) %}<{{ a }}{{ b }}{{ caller() if caller }}>{% endmacro %}{% macro joined(a) %}{{ ([a] + varargs|list)|join('+') }}{% endmacro %}{% set ns = namespace(a=1, b='z') %}"
                    "{% set m = messages[0]|default({'role': 'none'}) %}{% for m in messages or [{}] %}")
            return lead + "".join(self.statement(2, True) for _ in range(self.r.randint(1, 4))) + "{% endfor %}" + self.data()
        if kind < 0.35:
            return "{{ " + self.expression(self.r.randint(1, 3)) + " }}"
        lead = "{% macro f(a, b=2) %}<{{ a }}{{ b }}{{ caller() if caller }}>{% endmacro %}{% set ns = namespace(a=1, b='z') %}" if self.r.random() < 0.7 else ""
        return lead + "".join(self.statement(3, False) for _ in range(self.r.randint(1, 5))) + self.r.choice(["", "\n", "\n\n", "{% set z = 1 %}\n"])

    def spoiled(self, sources):
        text = self.r.choice(sources)
        for _ in range(self.r.randint(0, 3)):
            tokens = re.findall(r"\{[%{#][-+]?|[-+]?[%}#]\}|\w+|\s+|.", text, re.S)
            at = self.r.randrange(len(tokens))
            change = self.r.randint(0, 3)
            if change == 0:
                del tokens[at]
            elif change == 1:
                tokens[at] = self.r.choice(tokens)
            elif change == 2:
                tokens.insert(at, self.r.choice(tokens))
            else:
                tokens[at : at + self.r.randint(1, 6)] = [" "]
            text = "".join(tokens)
        return text


# What Python prints of objects holds addresses; integers here have 64 bits; what chat templates cannot use is refused.
UNTOLD = re.compile(r"0x[0-9a-f]{6,}|<(bound|built-in|generator|function|method|class|Macro|LoopContext|jinja2|__main__|list_reverse|dict_rev|range_it|TemplateRef|Namespace)|reverseiterator|tuple_reverse|&lt;|Markup", re.I)
UNSUPPORTED = re.compile(r"64 bits|has no place in a chat template|complex numbers are not|\\N|invalid character|surrogate|nested deeper|deeper than|cannot be sliced|range\(\) cannot reach")


def stopped(ours):
    """Whether a limit of ours on steps, memory or output ended it, as one that doubles a text in each turn."""
    return ours.get("error", "").endswith("raise the limit")


def differs(ours, theirs, template, names):
    if "skip" in theirs or stopped(ours) or UNTOLD.search(theirs.get("text", "")) or UNTOLD.search(ours.get("text", "")):
        return False
    if "error" in ours and UNSUPPORTED.search(ours["error"]):
        return False
    if re.search(r"\b(encode|urlize|pprint|random|striptags|wordwrap|xmlattr|lipsum|self|super|block|extends|include|import|autoescape)\b", template):
        return False
    if "error" in theirs:
        return "error" not in ours or (theirs["raised"] and ours["error"] != theirs["error"] and not UNTOLD.search(theirs["error"]))
    if ours.get("text") == theirs["text"] and len(ours["generations"]) == len(theirs["generations"]) and "generation" in template and not (template + json.dumps(names, ensure_ascii=False)).isascii():
        return False  # bytes of a block whose text went elsewhere cannot be told in characters
    return ours.get("text") != theirs["text"] or ours.get("generations") != theirs["generations"]


def ask(program, requests):
    """The answers for each context of each template."""
    lines = "".join(json.dumps({"template": t, "contexts": c, "now": NOW}) + "\n" for t, c in requests)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, timeout=600, env={**os.environ, "TZ": "UTC"})
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    if len(answers) != len(requests):
        template, contexts = requests[len(answers)]
        sys.exit(f"chat_render ended with {done.returncode} {done.stderr[-500:]}\ntemplate: {template!r}\ncontexts: {json.dumps(contexts)}")
    return answers


def write(folder):
    maker = Maker(1)
    cases = []
    conversations = [maker.names() for _ in range(40)]
    for path in sorted(folder.glob("*.jinja")):
        template, _ = compiled(path.read_text())
        for i, names in enumerate(conversations):
            expected = render(template, names)
            if "skip" in expected:
                print(path.name, i, "recurses without end")
                continue
            cases.append({"template": path.name, "conversation": i, **({"text": expected["text"], "generations": expected["generations"]} if "text" in expected
                                                                       else {"raises": expected["error"] if expected["raised"] else None})})
    (folder / "expected.json").write_text(json.dumps({"now": NOW, "conversations": conversations, "cases": cases}, ensure_ascii=False, indent=0) + "\n")
    print(len(cases), "cases,", sum("text" in c for c in cases), "render")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--count", type=int, default=20000, help="templates")
    parser.add_argument("--contexts", type=int, default=1, help="conversations that each is rendered with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=10)
    parser.add_argument("--write", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.write:
        return write(arguments.write)
    sources = [path.read_text() for path in sorted(TEXTS.glob("*.jinja"))]
    grammar = Grammar(arguments.seed)
    templates = compiling = renderings = texts = bounded = different = 0
    while templates < arguments.count:
        requests = []
        theirs = []
        for _ in range(max(1, 500 // arguments.contexts)):
            source = grammar.spoiled(sources) if grammar.r.random() < 0.25 else grammar.template()
            template, fault = compiled(source)
            contexts = [grammar.names() for _ in range(arguments.contexts if template else 1)]
            requests.append((source, contexts))
            theirs.append([render(template, names) if template else fault for names in contexts])
            compiling += template is not None
        templates += len(requests)
        for (source, contexts), expected, answers in zip(requests, theirs, ask(arguments.program, requests), strict=True):
            renderings += len(contexts)
            for names, own, answer in zip(contexts, expected, answers, strict=True):
                texts += "text" in own
                bounded += stopped(answer)
                if differs(answer, own, source, names):
                    different += 1
                    if different <= arguments.show:
                        print(f"--- template: {source!r}\nnames: {json.dumps(names, ensure_ascii=False)[:1500]}\nours:   {str(answer)[:700]}\ntheirs: {str(own)[:700]}", flush=True)
    print(f"{templates} templates, {compiling} of which compile, in {renderings} renderings, {texts} of which give a text, {bounded} of which our limits stop: "
          f"{different} differ (jinja2 {jinja2.__version__}, seed {arguments.seed})")
    return different > 0


sys.exit(main())
