"""The mutation run: what it changes, what it finds, and that it fails aloud."""

import ast

import pytest

import mutants


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"a <= b", "a > b"}),
        ("a + b", {"a - b", "a", "b"}),
        ("a ** b", {"a * b", "a"}),
        ("-a", {"a"}),
        ("a and b", {"a or b", "a"}),
        ("True", {"False"}),
        ("3", {"4"}),
        ("0.5", {"1.0"}),
        ("max(a, b)", {"min(a, b)"}),
        ("x.amax", {"x.amin"}),
        ("f(a)", set()),
    ],
)
def test_an_expression_becomes_what_is_nearly_right(source, expected):
    assert {ast.unparse(new) for new in mutants.changes(ast.parse(source, mode="eval").body)} == expected


def test_messages_annotations_and_text_are_left_alone():
    tree = ast.parse("def f(x: 3 = 4) -> 5:\n    '''6'''\n    if x: raise ValueError(f'{7} {8 + 9}')\n    return 1")
    found = [mutants._at(*place) for place in mutants.places(tree)]
    assert {node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, int)} == {4, 1}


def test_a_mutant_is_the_module_with_one_change():
    module = "functional.noise"
    whole = ast.unparse(ast.parse(mutants.path_of(module).read_text()))
    texts = {mutants.mutant(module, which).text for which in mutants.mutants(module)}
    assert len(texts) > 10
    assert all(text.partition("  ->  ")[0] in whole for text in texts)


def test_a_planted_bug_may_move_but_must_be_there_once():
    bug = mutants.Planted(
        "why", "pnp.batch", "Status.refutes", "return self in(Status.NOT_FINITE,\n Status.STRETCHED)", "1"
    )
    namespace = {"__name__": "changed"}
    exec(bug.mutant().code, namespace)
    assert namespace["Status"].STRETCHED.refutes is None
    for function, find in (("Status.refutes", "not there"), ("Status", "return"), ("nobody", "return")):
        with pytest.raises(LookupError):
            mutants.Planted("why", "pnp.batch", function, find, "").mutant()


def test_every_module_that_is_tried_has_tests():
    assert all(mutants.tests_of(module) for module in mutants.MODULES)
