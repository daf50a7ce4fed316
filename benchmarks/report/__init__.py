"""Pages from the tables of a grid.

The report of one grid, made by `dynamix bench report`:

    report              report.md, report.html and pictures from the tables; how to read it
    comparison          one contender against every other: what is clear, what is noise
    headline            two sentences, one picture, one table
    all_races           the subject against every rival, everybody against tuned static sizes
    one_race            the section of one scenario and workload
    grid_description    what ran, who takes part, cells that are not done
    pictures            what is drawn
    html                Markdown and pictures as one HTML file

Pages of benchmarks/results, each made by `python -m benchmarks.report.NAME FOLDER --out benchmarks/results`:

    planes              every data plane and framework
    paired              pairs of contenders: ours beside DDP, and with `wire: auto`
    network             slow, shared and lossy links: our agent against its strongest rivals
    data_plane          sums by their size, on one host and between hosts

    grid_page           the command line of `planes`
    page                Markdown tables, PNG files, figures between two marks of a page
"""
