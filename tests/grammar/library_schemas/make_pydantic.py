#!/usr/bin/env python3
"""Writes pydantic.json: the JSON Schemas of models as pydantic 2.14 makes them, with valid and invalid values.

usage: make_pydantic.py          writes pydantic.json
       make_pydantic.py --check  judges the values of every *.json here with jsonschema, too

Needs pydantic[email] 2.14, jsonschema[format-nongpl] and regex from PyPI. library_schemas_test reads the files.
"""

import json
import sys
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

import jsonschema
import pydantic
import regex
from pydantic import BaseModel, ConfigDict, EmailStr, Field, HttpUrl, StringConstraints

HERE = Path(__file__).parent


class Color(str, Enum):
    red = "red"
    green = "green"
    blue = "blue"


class Level(IntEnum):
    low = 1
    high = 2


class User(BaseModel):
    name: str
    age: int = Field(ge=0, le=150)
    nickname: Optional[str] = None


class Invoice(BaseModel):
    total: Decimal


class Price(BaseModel):
    amount: Decimal = Field(max_digits=8, decimal_places=2, ge=0)


class Contact(BaseModel):
    email: EmailStr = Field(max_length=255)


class Link(BaseModel):
    url: HttpUrl


class Tagged(BaseModel):
    tags: set[str]


class Palette(BaseModel):
    colors: set[Color]


class Flags(BaseModel):
    flags: frozenset[bool]


class Choice(BaseModel):
    picks: set[Literal["a", "b", "c", "d"]] = Field(min_length=1, max_length=3)


class Scores(BaseModel):
    scores: dict[str, float]


class Keyed(BaseModel):
    values: dict[Annotated[str, StringConstraints(pattern="^[a-z]+$")], int]


class ByColor(BaseModel):
    counts: dict[Color, int]


class Mixed(BaseModel):
    value: Union[int, float, str]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Owner(BaseModel):
    pet: Union[Cat, Dog] = Field(discriminator="kind")


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Point(BaseModel):
    xy: tuple[float, float]


class Event(BaseModel):
    at: datetime
    day: date
    lasts: timedelta


class Ids(BaseModel):
    id: UUID
    host: IPv4Address


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    ok: bool


class Steps(BaseModel):
    ratio: float = Field(multiple_of=0.05)


class Money(BaseModel):
    cents: int = Field(multiple_of=5000)


class Half(BaseModel):
    stars: float = Field(ge=0, le=5, multiple_of=0.5)


class Code(BaseModel):
    code: str = Field(pattern=r"^[A-Z]{3}-\d{4}$", max_length=8)


class Password(BaseModel):
    password: str = Field(min_length=8, max_length=64)


class Anything(BaseModel):
    payload: Any
    level: Level


class Dictionary(BaseModel):
    table: dict[str, int] = Field(min_length=1, max_length=3)


# name, model, valid values, invalid values
MODELS = [
    (User, [{"name": "Ada", "age": 36}, {"name": "Ada", "age": 0, "nickname": None}],
     [{"name": "Ada"}, {"name": "Ada", "age": 151}]),
    (Invoice, [{"total": 1.5}, {"total": "12.50"}], [{"total": None}, {}]),
    (Price, [{"amount": 12.25}, {"amount": "123456.78"}], [{"amount": -1}, {"amount": True}]),
    (Contact, [{"email": "ada@example.org"}, {"email": "a.b+c@mail.example.com"}],
     [{"email": "ada"}, {"email": "a" * 250 + "@example.org"}]),
    (Link, [{"url": "https://example.org/a?b=c"}, {"url": "http://example.org"}], [{"url": ""}, {"url": 1}]),
    (Tagged, [{"tags": []}, {"tags": ["a"]}], [{"tags": ["a", "a"]}, {"tags": [1]}]),
    (Palette, [{"colors": []}, {"colors": ["blue", "red"]}],
     [{"colors": ["red", "red"]}, {"colors": ["pink"]}]),
    (Flags, [{"flags": [True]}, {"flags": [False, True]}], [{"flags": [True, True]}, {"flags": [0]}]),
    (Choice, [{"picks": ["a"]}, {"picks": ["d", "a", "c"]}],
     [{"picks": []}, {"picks": ["a", "b", "c", "d"]}]),
    (Scores, [{"scores": {}}, {"scores": {"a": 1.5, "b": 2}}], [{"scores": {"a": "1"}}, {"scores": []}]),
    (Keyed, [{"values": {}}, {"values": {"abc": 1}}], [{"values": {"b": None}}, {"values": {"abc": "1"}}]),
    (ByColor, [{"counts": {"red": 1}}, {"counts": {}}], [{"counts": {"pink": 1}}, {"counts": {"red": 1.5}}]),
    (Mixed, [{"value": 1}, {"value": "x"}], [{"value": None}, {"value": []}]),
    (Owner, [{"pet": {"kind": "cat", "lives": 9}}, {"pet": {"kind": "dog", "tricks": ["sit"]}}],
     [{"pet": {"kind": "cow"}}, {"pet": {"kind": "cat", "tricks": []}}]),
    (Tree, [{"value": 1}, {"value": 1, "children": [{"value": 2, "children": []}]}],
     [{"value": 1, "children": [{}]}, {"children": []}]),
    (Point, [{"xy": [1, 2.5]}, {"xy": [0, -1]}], [{"xy": [1]}, {"xy": [1, 2, 3]}]),
    (Event, [{"at": "2026-01-02T03:04:05Z", "day": "2026-01-02", "lasts": "PT1H"},
             {"at": "2026-01-02T03:04:05.25+01:00", "day": "2024-02-29", "lasts": "P1D"}],
     [{"at": "2026-01-02", "day": "2026-01-02", "lasts": "PT1H"},
      {"at": "2026-01-02T03:04:05Z", "day": "2026-02-30", "lasts": "PT1H"}]),
    (Ids, [{"id": "123e4567-e89b-12d3-a456-426614174000", "host": "127.0.0.1"},
           {"id": "00000000-0000-0000-0000-000000000000", "host": "10.1.2.3"}],
     [{"id": "123e4567", "host": "127.0.0.1"}, {"id": "123e4567-e89b-12d3-a456-426614174000", "host": "256.1.1.1"}]),
    (Strict, [{"ok": True}, {"ok": False}], [{"ok": True, "x": 1}, {}]),
    (Steps, [{"ratio": 0.25}, {"ratio": 3}], [{"ratio": 0.26}, {"ratio": 0.01}]),
    (Money, [{"cents": 5000}, {"cents": -250000}], [{"cents": 4999}, {"cents": 2500}]),
    (Half, [{"stars": 4.5}, {"stars": 5}], [{"stars": 4.25}, {"stars": 5.5}]),
    (Code, [{"code": "ABC-1234"}, {"code": "XYZ-0000"}], [{"code": "abc-1234"}, {"code": "ABC-12345"}]),
    (Password, [{"password": "longer than 8"}, {"password": "12345678"}],
     [{"password": "short"}, {"password": "x" * 65}]),
    (Anything, [{"payload": [1, {"a": None}], "level": 1}, {"payload": "x", "level": 2}],
     [{"payload": 1, "level": 3}, {"level": 1}]),
    (Dictionary, [{"table": {"a": 1}}, {"table": {"a": 1, "b": 2, "c": 3}}],
     [{"table": {}}, {"table": {"a": 1, "b": 2, "c": 3, "d": 4}}]),
]

# Why a schema is refused, by model.
REFUSED = {"Tagged": "uniqueItems: not supported here"}


def dump(cases):
    """One field a line."""
    lines = []
    for case in cases:
        fields = [f' "{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in case.items()]
        lines.append("{" + ",\n".join(fields).lstrip() + "}")
    return "[\n" + ",\n".join(lines) + "\n]\n"


def check():
    """Judges every value here by jsonschema, formats included."""
    jsonschema._keywords.re = regex  # which knows \\p{..}
    count = 0
    for path in sorted(HERE.glob("*.json")):
        for case in json.loads(path.read_text()):
            validator = jsonschema.Draft202012Validator
            if "draft-07" in case["schema"].get("$schema", ""):
                validator = jsonschema.Draft7Validator
            judge = validator(case["schema"], format_checker=validator.FORMAT_CHECKER)
            count += 1
            for is_valid in (True, False):
                values = case["valid" if is_valid else "invalid"]
                assert len(values) >= 2, f"{path.name}: {case['name']}: {len(values)} values, wanted 2"
                for value in values:
                    assert judge.is_valid(value) == is_valid, f"{path.name}: {case['name']}: {value}: not {is_valid}"
    print(f"{count} schemas")


def main():
    assert pydantic.VERSION.startswith("2.14."), f"pydantic {pydantic.VERSION}, wanted 2.14"
    cases = [{"name": model.__name__, "schema": model.model_json_schema(), "valid": valid, "invalid": invalid}
             for model, valid, invalid in MODELS]
    for case in cases:
        if case["name"] in REFUSED:
            case["refused"] = REFUSED[case["name"]]
    (HERE / "pydantic.json").write_text(dump(cases))
    if "--check" in sys.argv:
        check()


if __name__ == "__main__":
    main()
