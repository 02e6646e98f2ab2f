"""Every public call that takes a path takes it as a str and as a Path."""

import inspect
from pathlib import Path

import mesa
import probe
import theory
from probe.figures.export import Export
from probe.run import Result

CALLS = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in (mesa, probe, theory)
    for name in package.__all__
}
CLASSES = {name: call for name, call in CALLS.items() if inspect.isclass(call)} | {"Export": Export, "Result": Result}
METHODS = {
    f"{name}.{key}": call
    for name, one in CLASSES.items()
    for key, call in vars(one).items()
    if inspect.isfunction(call) and not key.startswith("_")
}
KNOWN = """
    mesa.load(name) probe.open_run(path) probe.run_probe(out) probe.predict_failure(out) probe.run_evaluation(out)
    probe.write_report(run_dir) Export.save(folder) Result.save(folder)
""".split()


def test_every_signature_takes_both():
    takes = {}
    for name, call in {**CALLS, **METHODS}.items():
        if name in CLASSES or not callable(call):
            continue
        for parameter in inspect.signature(call).parameters.values():
            kinds = {kind.strip() for kind in str(parameter.annotation).split("|")}
            if kinds & {"Path", "os.PathLike[str]"}:
                takes[f"{name}({parameter.name})"] = "str" in kinds
    assert {name for name, both in takes.items() if not both} == set()
    assert takes.keys() >= {*KNOWN}


def test_a_model_and_an_evaluation_are_named_by_either(tmp_path):
    folder = Path(mesa.__file__).parent / "shipped" / "default"
    assert mesa.load(folder).name == mesa.load(str(folder)).name == str(folder)
    plan = probe.plan_evaluation(probe.EvalRequest(tasks=("nll",), methods="origin", lengths=(128,), samples=1))
    scores = [probe.run_evaluation(plan, place(tmp_path / "run")).cells for place in (str, Path)]
    assert scores[0] == scores[1]
    assert (tmp_path / "run" / "samples.csv").is_file()
