"""No secret stands in a file: each is refused at its place, and nothing repeats it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from harnessrl.specs.loader import SpecError, load_judge, load_run_spec
from harnessrl.specs.secrets import is_secret_name, masked
from harnessrl.trainer.data.load import load_tasks
from hypothesis import given
from hypothesis import strategies as st

KEY = "sk-Hush0123456789abcdefHush"
SPEC = """\
name: small
tasks: {{files: [tasks.yaml]}}
roles:
  policy: {{model: smollm2-wheel}}
  judge:
    base_urls: {urls}
    model: j
    {more}
engine:
{engine}
"""
LOCAL = "  kind: local"
URL = "[http://localhost:1/v1]"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rubric = "[{text: a, points: 1, check: {kind: words, max: 4}}]"
    Path("tasks.yaml").write_text(f"train: [{{id: a, domain: d, prompt: p, rubric: {rubric}}}]\n")


def problems(urls: str = URL, more: str = "temperature: 0.5", engine: str = LOCAL) -> list[str]:
    Path("run.yaml").write_text(SPEC.format(urls=urls, more=more, engine=engine))
    try:
        load_run_spec(Path("run.yaml"))
    except SpecError as error:
        return str(error).split("\n")
    return []


@pytest.mark.parametrize(
    ("urls", "column"),
    [
        ("['https://me:Hush1@host/v1']", 17),
        ("['https://Hush1@host/v1']", 17),
        ("['http://localhost:1/v1', 'https://host/v1?api_key=Hush1']", 42),
        ("['https://host/v1?v=2&key=Hush1']", 17),
        ("['https://host/v1?access-token=Hush1#m']", 17),
        ("['me:Hush1@host/v1']", 17),
        ("['https://me:Hush1@[host/v1']", 17),
        (f"['https://host/{KEY}/v1']", 17),
        ("https://me:Hush1@host/v1", 16),  # and no list
    ],
)
def test_an_address_holds_no_secret(urls: str, column: int) -> None:
    (problem,) = problems(urls)
    assert problem.startswith(f"run.yaml:6:{column}: roles.judge.base_urls")
    assert "Hush" not in problem
    assert "api_key_env" in problem or "must be a list" in problem


@pytest.mark.parametrize(
    ("more", "at"),
    [
        ("extra_body: {api_key: Hush1}", "8:27: roles.judge.extra_body.api_key"),
        (
            "extra_body: {a: {b: [{Authorization: Hush1}]}}",
            "8:42: roles.judge.extra_body.a.b[0].Authorization",
        ),
        (
            "extra_body: {headers: {X-Api-Key: Hush1}}",
            "8:39: roles.judge.extra_body.headers.X-Api-Key",
        ),
        ("extra_body: {token: Hush1}", "8:25: roles.judge.extra_body.token"),
        ("extra_body: {hfToken: [Hush1]}", "8:18: roles.judge.extra_body.hfToken"),
        ("extra_body: {password: 12345678}", "8:28: roles.judge.extra_body.password"),
        (f"extra_body: {{note: 'by {KEY}'}}", "8:24: roles.judge.extra_body.note"),
        ("extra_body: {note: [Bearer Hush1234]}", "8:25: roles.judge.extra_body.note[0]"),
        ("extra_body: {env: MY_API_KEY=Hush1234}", "8:23: roles.judge.extra_body.env"),
        ("extra_body: {proxy: 'http://me:Hush1@proxy'}", "8:25: roles.judge.extra_body.proxy"),
        ("extra_body: {headers: {Cookie: id=Hush1}}", "8:36: roles.judge.extra_body.headers.Cookie"),
        ("extra_body: {pwd: 12345678}", "8:23: roles.judge.extra_body.pwd"),
        ("extra_body: {pass: Hush1}", "8:24: roles.judge.extra_body.pass"),
        ("extra_body: {jwt: Hush1}", "8:23: roles.judge.extra_body.jwt"),
        ("extra_body: {openai_key: Hush1}", "8:30: roles.judge.extra_body.openai_key"),
        ("extra_body: {password: none}", "8:28: roles.judge.extra_body.password"),
        (f"api_key_env: {KEY}", "8:18: roles.judge.api_key_env"),
        ("api_key_env: hf_Hush0123456789abcdefgh", "8:18: roles.judge.api_key_env"),
        ("api_key_env: deadbeefdeadbeefdeadbeefdeadbeef", "8:18: roles.judge.api_key_env"),
    ],
)
def test_the_fields_of_a_role_hold_no_secret(more: str, at: str) -> None:
    (problem,) = problems(more=more)
    assert problem.startswith(f"run.yaml:{at}: ")
    assert not any(secret in problem for secret in ("Hush", "12345678", "deadbeef"))
    assert "environment variable" in problem


def test_the_flags_of_servers_hold_no_secret() -> None:
    engine = (
        "  kind: openrlhf\n"
        "  cluster: https://me:Hush1@head:8265\n"
        "  args: {logger.wandb.key: Hush1, ds.overlap_comm: true}\n"
        "  serve:\n"
        "    policy: {args: {api-key: Hush1, max-model-len: 16384}}\n"
        "    judge: {gpus: [1], args: {hf-token: Hush1}}"
    )
    found = problems(engine=engine)
    assert [problem.split(": ")[:2] for problem in found] == [
        ["run.yaml:11:12", "engine.cluster"],
        ["run.yaml:12:28", "engine.args.logger.wandb.key"],
        ["run.yaml:14:30", "engine.serve.policy.args.api-key"],
        ["run.yaml:15:41", "engine.serve.judge.args.hf-token"],
    ]
    assert "Hush" not in "".join(found)
    assert all("environment variable" in problem for problem in found)
    assert "RAY_JOB_HEADERS" in found[0] and "WANDB_API_KEY" in found[1]
    assert "VLLM_API_KEY" in found[2] and "VLLM_API_KEY" in found[3]


def test_a_key_in_the_place_of_a_model_is_refused() -> None:
    text = SPEC.format(urls=URL, more="temperature: 0.5", engine=LOCAL)
    Path("run.yaml").write_text(text.replace("model: j", f"model: {KEY}"))
    with pytest.raises(SpecError) as caught:
        load_run_spec(Path("run.yaml"))
    assert str(caught.value).startswith("run.yaml:7:12: roles.judge.model: this value holds a secret")
    assert "Hush" not in str(caught.value)


@pytest.mark.parametrize("rows", [False, True])
def test_the_arguments_of_a_plugin_hold_no_secret(rows: bool) -> None:
    check = {"kind": "plugin", "name": "mine", "args": {"at": {"api_key": "Hush1"}}}
    task = {
        "id": "a",
        "domain": "d",
        "prompt": "p",
        "rubric": [{"text": "a", "points": 1, "check": check}],
    }
    file = Path("rows.jsonl" if rows else "tasks.yaml")
    file.write_text(json.dumps(task) if rows else json.dumps({"train": [task]}))
    text = SPEC.format(urls=URL, more="temperature: 0.5", engine=LOCAL)
    Path("run.yaml").write_text(text.replace("tasks.yaml", str(file)))
    with pytest.raises(SpecError) as caught:
        load_tasks(load_run_spec(Path("run.yaml")))
    told = str(caught.value)
    assert "check.args.at.api_key: api_key is a secret" in told and "Hush" not in told
    assert "an environment variable that the check reads" in told


def test_it_is_told_beside_all_other_problems() -> None:
    found = problems(more="temprature: 1.0\n    extra_body: {api_key: Hush1}")
    assert [problem.split(": ")[1] for problem in found] == [
        "roles.judge.temprature",
        "roles.judge.extra_body.api_key",
    ]


@pytest.mark.parametrize(
    "more",
    [
        "extra_body: {return_token_ids: true, max_tokens: 3, stop_token_ids: [1], min_tokens: 1}",
        "extra_body: {chat_template_kwargs: {enable_thinking: false, eos_token: </s>}}",
        "extra_body: {prompt_cache_key: abc, key: value, tokenizer: x, keys: [a], api_key: ''}",
        "extra_body: {guided_regex: 'token=[0-9]+', stop: ['key=', 'a@b.org', 'mailto:a@b.org']}",
        "extra_body: {hf-token: true, authorization: null, api_key_env: JUDGE_KEY}",
        "extra_body: {site: 'https://host/@someone?page=2'}",
        "extra_body: {by: 'team:ops@corp', at: 'https://host/v1?signature=v4'}",
        "extra_body: {auth: none, token: 5, secret: None, pass: 2, model: sk-sentence-similarity-large}",
        "extra_body: {first_pass: a, bypass: b, wandb_project: c, host: task-sk-translation2-service}",
        "api_key_env: JUDGE_KEY_2",
    ],
)
def test_what_only_sounds_like_a_secret_is_let_through(more: str) -> None:
    assert problems(more=more) == []


def test_addresses_without_secrets_are_let_through() -> None:
    urls = "['http://10.0.0.1:8000/v1', 'https://host/v1?api-version=2', 'http://[::1]:1/v1']"
    assert problems(urls) == []
    assert problems("['http://task-sk-translation-service.local/v1', 'http://h/v1?signature=v4']") == []


def test_a_judge_file_holds_no_secret() -> None:
    Path("judge.yaml").write_text(
        "base_urls: ['https://me:Hush1@host/v1']\nmodel: j\nextra_body: {api-key: Hush1}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_judge(Path("judge.yaml"))
    address, key = str(caught.value).split("\n")
    assert address.startswith("judge.yaml:1:13: base_urls[0]: ")
    assert key.startswith("judge.yaml:3:23: extra_body.api-key: ")
    assert "Hush" not in address + key and "api_key_env" in address and "api_key_env" in key


def test_an_address_on_the_command_line_holds_none_either() -> None:
    Path("run.yaml").write_text(SPEC.format(urls=URL, more="temperature: 0.0", engine=LOCAL))
    row = {"prompt": "p", "rubric": [{"text": "a", "points": 1, "check": {"kind": "words", "max": 4}}]}
    Path("rows.jsonl").write_text(json.dumps(row))
    args = ("--set", "rows.jsonl", "--policy", "https://me:Hush1@host/v1")
    done = tiny.invoke("evaluate", "run.yaml", *args)
    assert done.exit_code == 2 and "POLICY_API_KEY" in done.output and "Hush" not in done.output


@given(st.text(alphabet="abcXYZ019_-", min_size=16, max_size=40), st.sampled_from(("", "a b ", "x,")))
def test_nothing_of_a_secret_is_left(secret: str, before: str) -> None:
    secret += "0"  # all keys of that form have a digit
    for text in (f"sk-{secret}", f"https://u:{secret}@h/v1", f"http://h/?api_key={secret}"):
        told = masked(before + text)
        assert secret not in told and told.startswith(before)


@given(st.text())
def test_masking_twice_is_masking_once(text: str) -> None:
    assert masked(masked(text)) == masked(text)


def test_names_of_secrets() -> None:
    secret = "api_key API-KEY apiKey x-api-key apikey token hf_token accessToken client_secret password"
    secret += (
        " cookie pwd pass jwt openai_key wandb_key logger.wandb.key encryption_key signing_key ssh_key"
    )
    assert all(map(is_secret_name, [*secret.split(), "Authorization", "aws.secret_access_key", "auth"]))
    no = "max_tokens eos_token tokenizer cache_key key keys author api_key_env token_ids secretary - ''"
    assert not any(map(is_secret_name, no.split()))
