//! The report on servers of several processes: Markdown tables and plots from the figures that are kept.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::load::Spread;
use super::quota::{PERIOD_US, QUOTA_US};
use super::results::{Carried, Metric, Part, Role, Row, Sample, Stored};
use super::topology::Topology;
use super::verdict;
use crate::plot::{Gauge, Panel, Series, gauges, lines, number};
use crate::ratio::Estimate;
use crate::report::tables::table_of_verdicts;
use crate::report::verdict::Verdict;

const COLOURS: [&str; 4] = ["#0b69a3", "#c05621", "#2f855a", "#7b8794"];

const HEAD: &str = "# Performance of the queue server of several processes

Written by `cargo xtask bench tubes --multi`; do not edit. What counts are ratios between servers measured in turn in
one run on one machine; absolute times are those of that machine on that day. *2 + 2* is 2 owners and 2 frontends,
*single* the server of one process.
";

const METHOD: &str = "## How it is measured

- *Load.* One thread of our own generator. A connection sends *depth* commands in one write, waits for all their replies
  and sends the next; put, reserve and delete for each job, bodies of 64 B, no log. *Independent tubes*: each connection
  uses and watches a tube of its own, and the tubes spread over all owners by their names. *One hot tube*: all share
  `default`, which one owner has; a tube never spreads over owners.
- *Shared core.* Every process of the server and the generator run on one core. *CPU of the server* is the run time of
  all its processes from `/proc/PID/task/*/schedstat` (ns) for each command, the supervisor's included; *with the
  generator* adds the generator's thread. Both are judged by the same bound; the first is the stricter one.
- *Quotas.* Each owner and each frontend, or the one process, has a control group of its own with a quota of processor
  time in each period, on all cores; the generator has none. So each process has a small core to itself, and throughput
  shows how the work spreads. A run is void unless all processes of the role that limits it used up their quota in more
  than 90 % of the periods.
- *Messages for each batch* come from the shared pages of the processes, as `tenure status --json` shows them.
- *Rounds* as in the report on one process: each starts a fresh server, warms it up, measures and ends it; the servers
  take turns. Intervals are distribution-free and cover the median with at least 90 %, or are the range where there are
  fewer than five rounds. \"At most\" is met if the lower end is not above the bound, \"at least\" if the upper end is not
  below it.
";

const REPEAT: &str = "## How to repeat

    cargo xtask bench tubes --multi                       # everything, some 25 minutes; quotas need root
    cargo xtask bench tubes --multi --quick               # a look in two minutes; the report stays beside the figures
    cargo xtask bench tubes --multi --parts bounds        # one part; the others keep their figures
";

/// Writes `multi.md` and its plots into `out` from the figures in `folder`; returns the paths written.
///
/// # Errors
///
/// Figures that cannot be read, or files that cannot be written.
pub fn write(folder: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    let mut figures = Vec::new();
    for part in Part::ALL {
        figures.extend(Stored::load(part, folder)?.map(|stored| (part, stored)));
    }
    let (verdicts, void) = verdict::all(&figures);
    let mut files = plots(&figures, &verdicts);
    let names: Vec<_> = files.iter().map(|(name, _)| name.clone()).collect();
    files.insert(0, ("multi.md".to_owned(), markdown(&figures, &verdicts, &void, &names)));
    fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let written = files.into_iter().map(|(name, text)| {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    });
    written.collect()
}

fn rows(figures: &[(Part, Stored)], part: Part) -> &[Row] {
    figures.iter().find(|(found, _)| *found == part).map_or(&[], |(_, stored)| &stored.rows)
}

fn plots(figures: &[(Part, Stored)], verdicts: &[Verdict]) -> Vec<(String, String)> {
    let mut plots = Vec::new();
    let judged: Vec<Gauge> = verdicts.iter().filter_map(Verdict::gauge).collect();
    if !judged.is_empty() {
        let title = "Tubes in several processes: what is promised and what was measured";
        plots.push(("multi-bounds.svg".to_owned(), gauges(title, &judged)));
    }
    let grid = rows(figures, Part::Grid);
    let mut depths: Vec<_> = grid.iter().map(|row| row.load.depth).collect();
    depths.dedup();
    for depth in depths {
        let panels: Vec<_> = grid.iter().filter(|row| row.load.depth == depth).map(panel_of_grid).collect();
        let unit =
            format!("µs of all processes for each command, logarithmic; one core, 128 connections, depth {depth}");
        let plot = lines("Tubes in several processes: cost of a command", &unit, "owners", &panels);
        plots.push((format!("multi-cpu-{depth}.svg"), plot));
    }
    let quotas = rows(figures, Part::Quotas);
    if !quotas.is_empty() {
        let panel = Panel {
            title: "owners + frontends".to_owned(),
            categories: quotas[0].topologies().iter().map(ToString::to_string).collect(),
            series: quotas.iter().zip(COLOURS).map(|(row, colour)| series_of_quotas(row, colour)).collect(),
        };
        let unit = "thousand commands in a second, logarithmic; a tenth of a core for each process";
        plots
            .push(("multi-quotas.svg".to_owned(), lines("Tubes in several processes: throughput", unit, "", &[panel])));
    }
    plots
}

/// A line for each number of frontends over the numbers of owners.
fn panel_of_grid(row: &Row) -> Panel {
    let topologies = row.topologies();
    let counts = |of: fn(Topology) -> Option<u16>| {
        let mut counts: Vec<_> = topologies.iter().filter_map(|topology| of(*topology)).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    };
    let owners = counts(|topology| match topology {
        Topology::Single => None,
        Topology::Multi { owners, .. } => Some(owners),
    });
    let frontends = counts(|topology| match topology {
        Topology::Single => None,
        Topology::Multi { frontends, .. } => Some(frontends),
    });
    let value = |topology| row.median(topology, |sample| Some(sample.server_ns() / 1e3));
    let mut series: Vec<_> = frontends
        .iter()
        .zip(COLOURS)
        .map(|(frontends, colour)| Series {
            name: format!("{frontends} frontend(s)"),
            colour,
            values: owners.iter().map(|owners| value(Topology::multi(*owners, *frontends))).collect(),
        })
        .collect();
    let single = owners.iter().map(|_| value(Topology::Single)).collect();
    series.push(Series { name: "single".to_owned(), colour: COLOURS[3], values: single });
    Panel { title: row.load.spread.to_string(), categories: owners.iter().map(ToString::to_string).collect(), series }
}

fn series_of_quotas(row: &Row, colour: &'static str) -> Series {
    let rate = |topology| row.median(topology, |sample| Some(sample.commands_per_second() / 1e3));
    let values = row.topologies().into_iter().map(rate).collect();
    Series { name: row.load.spread.to_string(), colour, values }
}

fn markdown(figures: &[(Part, Stored)], verdicts: &[Verdict], void: &[String], plots: &[String]) -> String {
    let mut text = HEAD.to_owned();
    circumstances(figures, &mut text);
    text.push_str("\n## What is promised\n\n");
    if verdicts.is_empty() {
        text.push_str("Nothing with a bound was measured yet.\n");
    } else {
        table_of_verdicts(verdicts, &mut text);
    }
    for reason in void {
        let _ = writeln!(text, "\n**{reason}.**");
    }
    for plot in plots {
        let _ = writeln!(text, "\n![{}]({plot})", plot.trim_end_matches(".svg").replace('-', " "));
    }
    for part in Part::ALL {
        let title = match part {
            Part::Bounds => "One core: rows with bounds",
            Part::Grid => "One core: every number of owners and frontends",
            Part::Quotas => "A quota for each process",
        };
        let _ = writeln!(text, "\n## {title}\n");
        let Some((_, stored)) = figures.iter().find(|(found, _)| *found == part) else {
            text.push_str("Not measured yet.\n");
            continue;
        };
        let _ =
            writeln!(text, "{}; other processes used {:.0} % of all cores' time.", stored.date, stored.others * 100.0);
        for row in &stored.rows {
            let rounds = row.rounds.len();
            let _ = writeln!(text, "\n### {}\n\n{rounds} round(s) of {} s.\n", row.load, number(row.seconds));
            if part == Part::Quotas { table_of_quotas(row, &mut text) } else { table_of_cpu(row, &mut text) }
        }
    }
    hot_tube(rows(figures, Part::Quotas), &mut text);
    let _ = write!(text, "\n{METHOD}\n{REPEAT}");
    text
}

fn circumstances(figures: &[(Part, Stored)], text: &mut String) {
    let Some((_, first)) = figures.first() else { return };
    let machine = &first.machine;
    let _ = writeln!(
        text,
        "\nMachine: {} cores of {}, {} MiB of memory, Linux {}. Version: `{}`.",
        machine.cores, machine.processor, machine.memory_mib, machine.kernel, first.version
    );
    if figures.iter().any(|(_, stored)| stored.machine != *machine) {
        text.push_str("**Some parts were measured on another machine than this.**\n");
    }
    if figures.iter().any(|(_, stored)| stored.quick) {
        text.push_str("**This was a quick run: it shows that everything works and is no measurement.**\n");
    }
}

fn table_of_cpu(row: &Row, text: &mut String) {
    text.push_str(
        "| server | CPU µs of the server | supervisor | owners | frontends | with the generator | server / single | with \
         the generator / single | thousand/s | latency µs 50 % / 99 % / 99.9 % | messages a batch to owners | back \
         |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for topology in row.topologies() {
        let micros = |value: &dyn Fn(&Sample) -> f64| shown(row.median(topology, |sample| Some(value(sample) / 1e3)));
        let role = |role: Role| {
            if topology == Topology::Single { "–".to_owned() } else { micros(&|sample| sample.role_ns(role)) }
        };
        let ratio = |metric| with_interval(row.ratio(metric, topology, Topology::Single));
        let _ = writeln!(
            text,
            "| {topology} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            micros(&Sample::server_ns),
            role(Role::Supervisor),
            role(Role::Owner),
            role(Role::Frontend),
            micros(&Sample::total_ns),
            ratio(Metric::Server),
            ratio(Metric::Total),
            shown(row.median(topology, |sample| Some(sample.commands_per_second() / 1e3))),
            latencies(row, topology),
            batch(row, topology, |sample| sample.to_owners),
            batch(row, topology, |sample| sample.to_frontends),
        );
    }
}

fn table_of_quotas(row: &Row, text: &mut String) {
    let _ = writeln!(
        text,
        "{QUOTA_US} µs in {PERIOD_US} µs for each process. *Used* is processor time as a share of one core, least and \
         most of the processes of a role; *stopped* the share of periods in which the quota was used up, the least of \
         the role.\n\n| server | thousand/s | / 1 + 1 | owners used % | stopped % | frontends used % | stopped % | \
         latency µs 50 % / 99 % / 99.9 % | messages a batch to owners | back |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    for topology in row.topologies() {
        let first = if topology == Topology::Single { Role::Single } else { Role::Owner };
        let stopped =
            |role| shown(row.median(topology, |sample| sample.throttled_share(role).map(|share| share * 100.0)));
        let used = |role| {
            let end = |end: usize| row.median(topology, |sample| sample.cores_used(role).map(|ends| ends[end] * 100.0));
            end(0).zip(end(1)).map_or("–".to_owned(), |(low, high)| format!("{} – {}", number(low), number(high)))
        };
        let _ = writeln!(
            text,
            "| {topology} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            shown(row.median(topology, |sample| Some(sample.commands_per_second() / 1e3))),
            with_interval(row.ratio(Metric::Throughput, topology, Topology::multi(1, 1))),
            used(first),
            stopped(first),
            used(Role::Frontend),
            stopped(Role::Frontend),
            latencies(row, topology),
            batch(row, topology, |sample| sample.to_owners),
            batch(row, topology, |sample| sample.to_frontends),
        );
    }
}

/// What one tube gains from more processes, in words.
fn hot_tube(rows: &[Row], text: &mut String) {
    let of = |spread| rows.iter().find(|row| row.load.spread == spread);
    let Some((own, hot)) = of(Spread::Own).zip(of(Spread::Hot)) else { return };
    text.push_str(
        "\n## The limit of one tube\n\nA tube lives at one owner: more owners do nothing for it, more frontends share its \
         clients' bytes until its owner is the limit.\n\n| server | independent tubes / 1 + 1 | one hot tube / 1 + 1 \
         |\n|---|---|---|\n",
    );
    for topology in own.topologies() {
        let ratio = |row: &Row| with_interval(row.ratio(Metric::Throughput, topology, Topology::multi(1, 1)));
        let _ = writeln!(text, "| {topology} | {} | {} |", ratio(own), ratio(hot));
    }
}

fn latencies(row: &Row, topology: Topology) -> String {
    let of = |value: fn(&Sample) -> u64| shown(row.median(topology, |sample| Some(value(sample) as f64 / 1e3)));
    format!("{} / {} / {}", of(|sample| sample.p50_ns), of(|sample| sample.p99_ns), of(|sample| sample.p999_ns))
}

fn batch(row: &Row, topology: Topology, of: fn(&Sample) -> Option<Carried>) -> String {
    let size = |sample: &Sample| {
        of(sample).filter(|carried| carried.batches > 0).map(|carried| carried.messages as f64 / carried.batches as f64)
    };
    shown(row.median(topology, size))
}

fn shown(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), number)
}

fn with_interval(estimate: Option<Estimate>) -> String {
    match estimate {
        None => "–".to_owned(),
        Some(estimate) if estimate.count < 2 => number(estimate.median),
        Some(estimate) => {
            format!("{} ({} – {})", number(estimate.median), number(estimate.low), number(estimate.high))
        }
    }
}
