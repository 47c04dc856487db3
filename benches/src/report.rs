//! The report: Markdown tables and plots from the figures that are kept.

pub(crate) mod tables;
pub(crate) mod verdict;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::peer::{Contender, LogMode};
use crate::plot::{Gauge, Panel, Series, gauges, lines};
use crate::results::{Content, Row, Stored};
use crate::round::Sample;
use crate::sections::Section;
use crate::workload::Mix;

/// The figures of all sections that were measured.
type Figures = BTreeMap<Section, Stored>;

const CONTENDERS: [(Contender, &str); 3] =
    [(Contender::Tenure, "#0b69a3"), (Contender::Beanstalkd, "#c05621"), (Contender::Floor, "#7b8794")];

/// Writes `tubes.md` and its plots into `out` from the figures in `folder`; returns the paths written.
///
/// # Errors
///
/// Figures that cannot be read, or files that cannot be written.
pub fn write(folder: &Path, out: &Path) -> Result<Vec<PathBuf>> {
    let mut figures = Figures::new();
    for section in Section::ALL {
        if let Some(stored) = Stored::load(section, folder)? {
            figures.insert(section, stored);
        }
    }
    let verdicts = verdict::all(&figures);
    let mut files = plots(&figures, &verdicts);
    let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
    files.insert(0, ("tubes.md", tables::markdown(&figures, &verdicts, &names)));
    fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    files
        .into_iter()
        .map(|(name, text)| {
            let path = out.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            Ok(path)
        })
        .collect()
}

fn rows(figures: &Figures, section: Section) -> &[Row] {
    match figures.get(&section).map(|stored| &stored.content) {
        Some(Content::Rows(rows)) => rows,
        _ => &[],
    }
}

fn plots(figures: &Figures, verdicts: &[verdict::Verdict]) -> Vec<(&'static str, String)> {
    let mut plots = Vec::new();
    let judged: Vec<Gauge> = verdicts.iter().filter_map(verdict::Verdict::gauge).collect();
    if !judged.is_empty() {
        plots.push(("tubes-bounds.svg", gauges("Tubes: what is promised and what was measured", &judged)));
    }
    let select = |section, mix, mode| {
        let rows = rows(figures, section).iter();
        rows.filter(move |row| row.workload.mix == mix && row.mode == mode && row.workload.body_bytes == 64)
            .collect::<Vec<_>>()
    };
    let cpu = panels(&select(Section::Matrix, Mix::Mixed, LogMode::Memory), |sample| sample.cpu_ns_per_command() / 1e3);
    if !cpu.is_empty() {
        let unit = "µs of the server's processor for each command, logarithmic; put + reserve + delete, 64 B, memory";
        plots.push(("tubes-cpu.svg", lines("Tubes: cost of a command", unit, "connections", &cpu)));
    }
    let puts = panels(&select(Section::Log, Mix::Put, LogMode::Always), |sample| sample.commands_per_second() / 1e3);
    if !puts.is_empty() {
        let unit = "thousand puts in a second, logarithmic; 64 B, log synced before each reply (-f 0)";
        plots.push(("tubes-durable.svg", lines("Tubes: durable puts", unit, "connections", &puts)));
    }
    plots
}

/// A panel for each depth in `rows`, over their numbers of connections.
fn panels(rows: &[&Row], value: impl Fn(&Sample) -> f64 + Copy) -> Vec<Panel> {
    let mut depths: Vec<_> = rows.iter().map(|row| row.workload.depth).collect();
    depths.dedup();
    let panel = |depth: usize| {
        let of_depth: Vec<_> = rows.iter().filter(|row| row.workload.depth == depth).collect();
        let series = CONTENDERS.iter().filter_map(|(contender, colour)| {
            let values: Vec<_> = of_depth.iter().map(|row| row.median(*contender, value)).collect();
            let series = Series { name: contender.to_string(), colour, values };
            series.values.iter().any(Option::is_some).then_some(series)
        });
        let title = if depth == 1 { "one command at a time".to_owned() } else { format!("{depth} pipelined") };
        let categories = of_depth.iter().map(|row| row.workload.connections.to_string()).collect();
        Panel { title, categories, series: series.collect() }
    };
    depths.into_iter().map(panel).collect()
}
