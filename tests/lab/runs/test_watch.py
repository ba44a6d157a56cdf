import io

from rich.console import Console

from stimulus_moo.lab.runs.watch import Watch


def test_a_terminal_sees_loss_and_time_left():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Watch(console, "All", 2) as watch:
        watch.begin("MGD, seed 0", 40)
        watch.show(10, [0.5, 0.25])
        console.print(watch._bars)
    said = console.file.getvalue()
    assert "loss 0.5 0.25" in said
    assert "10/40" in said
    assert "left" in said
