//! The report's text.

use std::fmt::Write as _;

use super::verdict::Verdict;
use super::{Figures, rows};
use crate::peer::{Contender, LogMode};
use crate::plot::number;
use crate::ratio::Estimate;
use crate::results::{Content, IdleCount, Memory, Metric, Recovery, Row, Start, Stored, Syncs};
use crate::round::Sample;
use crate::sections::Section;

const HEAD: &str = "# Performance of the queue server

Written by `cargo xtask bench tubes`; do not edit. What counts are ratios between servers measured in turn in one run
on one machine; absolute times are those of that machine on that day.
";

const METHOD: &str = "## How it is measured

- *Contenders.* `tenure tubes`, Debian's `beanstalkd` with the same flags, and the *floor*: one thread with a bare
  epoll loop that receives and answers the same bytes as the workload, one read and one write for what arrived, and
  nothing else. The floor is the kernel's own price.
- *Load.* One thread of our own generator on another core than the server. A connection sends *depth* commands in one
  write, waits for all their replies and sends the next. *mixed* is put, reserve and delete for each job; *reserve +
  delete* drains a queue that was filled before, with the filling left out. Every reply is checked; a wrong one ends the
  run. With 1,000 tubes each of 125 connections watches eight of its own and uses them in turn, with a `use` before
  each put, which is counted as a command.
- *Rounds.* Each round starts a fresh server, warms it up, measures, and ends it; the contenders take turns and each
  round begins with another one. A ratio is taken within a round. The table of bounds uses full pairs; the other
  tables use shorter and fewer rounds, as each says, and are there for the shape, not for a verdict.
- *Intervals* are distribution-free: the order statistics that cover the true median with at least 90 %. Where there
  are fewer than five rounds it is the range. \"At most\" is met if the lower end is not above the bound, \"at least\" if
  the upper end is not below it.
- *CPU* is the run time of all threads of the server from `/proc/PID/task/*/schedstat` (ns), the thread that syncs the
  log included. Latency runs from the write of a batch to the read of a reply.
- *Claims of no change* are counts: user instructions of a fixed script by callgrind and system calls by strace, each
  as the difference between a script and one twice as long, so that set-up falls out. 16 connections play it in turn.
";

const REPEAT: &str = "## How to repeat

    cargo xtask bench tubes                        # everything; installs beanstalkd, strace and valgrind where missing
    cargo xtask bench tubes --quick                # a look in a few minutes; the report stays beside the figures
    cargo xtask bench tubes --only bounds,sync     # some sections; the others keep their figures
    cargo xtask bench tubes --pairs 21 --seconds 5 # more and longer pairs for the bounds
    cargo xtask bench tubes --multi                # the server of several processes; its report is multi.md

Two idle cores are wanted. Figures are kept beside the release executables, one file for each section, so that a
section can be repeated alone; its date stands at its table.
";

pub(super) fn markdown(figures: &Figures, verdicts: &[Verdict], plots: &[&str]) -> String {
    let mut text = HEAD.to_owned();
    circumstances(figures, &mut text);
    bounds(figures, verdicts, &mut text);
    for plot in plots {
        let _ = writeln!(text, "\n![{}]({plot})", plot.trim_end_matches(".svg").replace('-', " "));
    }
    for section in Section::ALL {
        if let Some(stored) = figures.get(&section) {
            self::section(section, stored, &mut text);
        } else {
            let _ = writeln!(text, "\n## {}\n\nNot measured yet.", title(section));
        }
    }
    let _ = write!(text, "\n{METHOD}\n{REPEAT}");
    text
}

fn circumstances(figures: &Figures, text: &mut String) {
    let Some(first) = figures.values().next() else { return };
    let machine = &first.machine;
    let _ = writeln!(
        text,
        "\nMachine: {} cores of {}, {} MiB of memory, Linux {}. {}",
        machine.cores,
        machine.processor,
        machine.memory_mib,
        machine.kernel,
        if first.shared_core {
            "Server and generator had to share one core, which blurs every figure."
        } else {
            "The server was pinned to one core, the generator to another."
        }
    );
    let versions: Vec<_> =
        first.versions.iter().map(|(contender, version)| format!("{contender}: `{version}`")).collect();
    let _ = writeln!(text, "Versions: {}.", versions.join("; "));
    if figures.values().any(|stored| stored.machine != *machine) {
        text.push_str("**Some sections were measured on another machine than this.**\n");
    }
    if figures.values().any(|stored| stored.quick) {
        text.push_str("**This was a quick run: it shows that everything works and is no measurement.**\n");
    }
    let most = figures.values().map(|stored| stored.others).fold(0.0, f64::max);
    let _ = writeln!(
        text,
        "\nNoise: other processes used up to {:.0} % of all cores' time during a section (each table says how much). \
         They take caches and cores from server and generator alike, which widens intervals and lowers throughput; \
         CPU per command is the steadier figure.",
        most * 100.0
    );
}

fn bounds(figures: &Figures, verdicts: &[Verdict], text: &mut String) {
    text.push_str("\n## What is promised\n\n");
    if verdicts.is_empty() {
        text.push_str("Nothing with a bound was measured yet.\n");
        return;
    }
    text.push_str("Workloads of this table have 128 connections, 64 B bodies and one tube.\n\n");
    table_of_verdicts(verdicts, text);
    if let Some(row) = rows(figures, Section::Bounds).first() {
        let _ = writeln!(
            text,
            "\nCPU and throughput: {} interleaved rounds of {} s for each contender.",
            row.rounds.len(),
            number(row.seconds)
        );
    }
}

/// A line for each promise.
pub(crate) fn table_of_verdicts(verdicts: &[Verdict], text: &mut String) {
    text.push_str("| figure | median | interval | bound | met | values |\n|---|---|---|---|---|---|\n");
    for verdict in verdicts {
        let Estimate { median, low, high, count, coverage } = verdict.estimate;
        let interval = if count < 2 {
            "a count".to_owned()
        } else {
            format!("{} – {} ({:.0} %)", number(low), number(high), coverage * 100.0)
        };
        let met = match verdict.is_met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "not judged",
        };
        let _ = writeln!(
            text,
            "| {} | {}{} | {interval} | {} | {met} | {count} |",
            verdict.what,
            number(median),
            verdict.unit,
            verdict.bound_text()
        );
    }
}

fn title(section: Section) -> &'static str {
    match section {
        Section::Bounds => "Rows with bounds",
        Section::Matrix => "In memory",
        Section::Log => "With a log",
        Section::Tubes => "1 and 1,000 tubes",
        Section::Sync => "Records for each sync",
        Section::Memory => "Memory of ready jobs",
        Section::Idle => "Idle connections and tubes",
        Section::Start => "Start",
        Section::Recovery => "Recovery",
    }
}

fn section(section: Section, stored: &Stored, text: &mut String) {
    let _ = writeln!(text, "\n## {}\n", title(section));
    let _ = write!(text, "{}; other processes used {:.0} % of all cores' time", stored.date, stored.others * 100.0);
    match &stored.content {
        Content::Rows(rows) => table_of_rows(rows, text),
        Content::Syncs(syncs) => table_of_syncs(syncs, text),
        Content::Memory(memory) => table_of_memory(memory, text),
        Content::Idle(counts) => table_of_idle(counts, text),
        Content::Starts(starts) => table_of_starts(starts, text),
        Content::Recoveries(recoveries) => table_of_recoveries(recoveries, text),
    }
}

fn table_of_rows(rows: &[Row], text: &mut String) {
    let Some(first) = rows.first() else {
        text.push_str(".\n");
        return;
    };
    let _ = writeln!(
        text,
        "; {} round(s) of {} s for each contender. T is tenure, B beanstalkd, F the floor; ratios with their interval, \
         latency as 50 % / 99 % / 99.9 %. \"Busy\" is the share of time in which the generator computed: near 100 % it, \
         not the server, limits the throughput.\n",
        first.rounds.len(),
        number(first.seconds)
    );
    // A column that says the same in every row says it once in the heading's tables instead.
    let shows_tubes = rows.iter().any(|row| row.workload.tubes != first.workload.tubes);
    let shows_mode = rows.iter().any(|row| row.mode != LogMode::Memory);
    let shows_floor = rows.iter().any(|row| row.rounds.iter().any(|round| round.contains_key(&Contender::Floor)));
    let mut head = vec!["mix"];
    if shows_mode {
        head.push("log");
    }
    head.extend(["body B", "depth", "connections"]);
    if shows_tubes {
        head.push("tubes");
    }
    head.extend(["CPU µs T", "B"]);
    if shows_floor {
        head.push("F");
    }
    head.push("T / B");
    if shows_floor {
        head.push("T / F");
    }
    head.extend(["thousand/s T", "B"]);
    if shows_floor {
        head.push("F");
    }
    head.extend(["T / B", "latency µs T", "B"]);
    if shows_floor {
        head.push("F");
    }
    head.push("busy % T");
    let _ = writeln!(text, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        let workload = &row.workload;
        let mut cells = vec![workload.mix.to_string()];
        if shows_mode {
            cells.push(row.mode.to_string().trim_start_matches("log, ").to_owned());
        }
        cells.extend([workload.body_bytes, workload.depth, workload.connections].map(|count| count.to_string()));
        if shows_tubes {
            cells.push(workload.tubes.to_string());
        }
        let contenders: &[_] = if shows_floor {
            &[Contender::Tenure, Contender::Beanstalkd, Contender::Floor]
        } else {
            &[Contender::Tenure, Contender::Beanstalkd]
        };
        let values = |value: &dyn Fn(&Sample) -> f64| {
            let of = |contender: &Contender| row.median(*contender, value).map_or("–".to_owned(), number);
            contenders.iter().map(of).collect::<Vec<_>>()
        };
        let ratio = |metric, against| row.ratio(metric, against).map_or("–".to_owned(), with_interval);
        cells.extend(values(&|sample| sample.cpu_ns_per_command() / 1e3));
        cells.push(ratio(Metric::Cpu, Contender::Beanstalkd));
        if shows_floor {
            cells.push(ratio(Metric::Cpu, Contender::Floor));
        }
        cells.extend(values(&|sample| sample.commands_per_second() / 1e3));
        cells.push(ratio(Metric::Throughput, Contender::Beanstalkd));
        cells.extend(contenders.iter().map(|contender| latencies(row, *contender)));
        cells.push(
            row.median(Contender::Tenure, Sample::generator_share)
                .map_or("–".to_owned(), |share| number(share * 100.0)),
        );
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
}

fn latencies(row: &Row, contender: Contender) -> String {
    let of = |value: fn(&Sample) -> u64| {
        row.median(contender, |sample| value(sample) as f64 / 1e3).map_or("–".to_owned(), number)
    };
    format!("{} / {} / {}", of(|sample| sample.p50_ns), of(|sample| sample.p99_ns), of(|sample| sample.p999_ns))
}

fn with_interval(estimate: Estimate) -> String {
    if estimate.count < 2 {
        return number(estimate.median);
    }
    format!("{} ({} – {})", number(estimate.median), number(estimate.low), number(estimate.high))
}

fn table_of_syncs(syncs: &Syncs, text: &mut String) {
    text.push_str(
        ".\n\nThe disk alone: a write of 160 B and `fdatasync`, one after the other, in the folder of the logs.\n\n\
         | write | median µs | 99 % µs |\n|---|---|---|\n",
    );
    for disk in &syncs.disk {
        let _ = writeln!(text, "| {} | {} | {} |", disk.space, number(disk.median_us), number(disk.p99_us));
    }
    text.push_str(
        "\nPuts of 64 B with `-f 0`: records from `stats`, syncs counted by strace, which slows each one down.\n\n\
         | server | connections | depth | records | syncs | records for each sync |\n|---|---|---|---|---|---|\n",
    );
    for count in &syncs.counts {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            count.contender,
            count.connections,
            count.depth,
            count.records,
            count.syncs,
            number(count.records as f64 / count.syncs.max(1) as f64)
        );
    }
}

fn table_of_memory(memory: &Memory, text: &mut String) {
    let _ = writeln!(
        text,
        ".\n\nGrowth of resident memory by {} ready jobs of {} B in one tube, and what is left of it when all are \
         deleted.\n\n| server | bytes a job | interval | MiB left | values |\n|---|---|---|---|---|",
        number(memory.jobs as f64),
        memory.body_bytes
    );
    for (contender, values) in &memory.bytes_per_job {
        let left = memory.bytes_left.get(contender).and_then(|values| Estimate::of(values));
        let (Some(each), Some(left)) = (Estimate::of(values), left) else { continue };
        let _ = writeln!(
            text,
            "| {contender} | {} | {} – {} | {} | {} |",
            number(each.median),
            number(each.low),
            number(each.high),
            number(left.median / f64::from(1 << 20)),
            each.count
        );
    }
}

fn table_of_idle(counts: &[IdleCount], text: &mut String) {
    text.push_str(
        ". Mixed commands of 64 B bodies. The original walks all tubes at every step and is measured with fewer of \
         them.\n\n| server | depth | idle connections | idle tubes | instructions a command | system calls a command \
         |\n|---|---|---|---|---|---|\n",
    );
    for count in counts {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.1} | {:.4} |",
            count.contender, count.depth, count.connections, count.tubes, count.instructions, count.calls
        );
    }
}

fn table_of_starts(starts: &[Start], text: &mut String) {
    text.push_str(
        ". From exec to the first accepted connection, the log in an empty directory.\n\n\
         | server | log | median ms | longest ms | starts |\n|---|---|---|---|---|\n",
    );
    for start in starts {
        let Some(estimate) = Estimate::of(&start.milliseconds) else { continue };
        let longest = start.milliseconds.iter().copied().fold(0.0, f64::max);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            start.contender,
            start.mode,
            number(estimate.median),
            number(longest),
            estimate.count
        );
    }
}

fn table_of_recoveries(recoveries: &[Recovery], text: &mut String) {
    text.push_str(
        ". From exec until `stats` shows all jobs ready; the files are synced and in the page cache.\n\n\
         | server | body B | jobs | log MB | median s | interval | jobs/s | MB/s |\n|---|---|---|---|---|---|---|---|\n",
    );
    for recovery in recoveries {
        let Some(time) = Estimate::of(&recovery.seconds) else { continue };
        let megabytes = recovery.log_bytes as f64 / 1e6;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} – {} | {} | {} |",
            recovery.contender,
            recovery.body_bytes,
            number(recovery.jobs as f64),
            number(megabytes),
            number(time.median),
            number(time.low),
            number(time.high),
            number(recovery.jobs as f64 / time.median),
            number(megabytes / time.median)
        );
    }
}
