//! Plots as SVG, written by hand: two shapes are all the report needs.
//!
//! Light background, no scripts, no fonts of its own; every value stands as a number beside its mark, so that a plot
//! can be read without its axis.

use std::fmt::Write as _;

const INK: &str = "#1f2933";
const FAINT: &str = "#7b8794";
const GRID: &str = "#e4e7eb";
const GOOD: &str = "#1b7f5c";
const BAD: &str = "#b83280";
const CHARACTER_WIDTH: f64 = 6.6;

/// Values of one contender over the categories of a panel.
#[derive(Clone, Debug)]
pub struct Series {
    /// Shown in the legend.
    pub name: String,
    /// Colour of line and marks.
    pub colour: &'static str,
    /// One value a category; a gap where there is none.
    pub values: Vec<Option<f64>>,
}

/// One diagram of a row of diagrams.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Stands above it.
    pub title: String,
    /// Labels of the horizontal axis, from left to right.
    pub categories: Vec<String>,
    /// The lines; all panels have the same ones in the same order.
    pub series: Vec<Series>,
}

/// One bound and how far the measured interval lies from it.
#[derive(Clone, Debug)]
pub struct Gauge {
    /// What is promised.
    pub name: String,
    /// The figures in words.
    pub text: String,
    /// Lower end, median and upper end of the interval in units of the bound: at most 1 keeps it.
    pub share: [f64; 3],
    /// Whether the bound is met.
    pub is_met: bool,
}

/// Draws `panels` side by side over one logarithmic axis that is called `unit`; the categories are called `axis`.
pub fn lines(title: &str, unit: &str, axis: &str, panels: &[Panel]) -> String {
    const LEFT: f64 = 64.0;
    const TOP: f64 = 92.0;
    const PANEL_WIDTH: f64 = 420.0;
    const PANEL_GAP: f64 = 28.0;
    const PANEL_HEIGHT: f64 = 300.0;
    let count = f64::from(u32::try_from(panels.len()).unwrap_or(u32::MAX));
    let width = LEFT + count * (PANEL_WIDTH + PANEL_GAP);
    let mut svg = Svg::new(width, TOP + PANEL_HEIGHT + 62.0, title);
    svg.text(16.0, 26.0, Anchor::Start, INK, 16, title);
    svg.text(16.0, 46.0, Anchor::Start, FAINT, 12, unit);
    if let Some(panel) = panels.first() {
        let mut x = LEFT;
        for series in &panel.series {
            svg.circle(x, 64.0, 4.0, series.colour);
            svg.text(x + 10.0, 68.0, Anchor::Start, INK, 12, &series.name);
            x += 34.0 + CHARACTER_WIDTH * width_of(&series.name);
        }
    }
    let values = panels.iter().flat_map(|panel| &panel.series).flat_map(|series| series.values.iter().flatten());
    let scale = LogScale::around(values.copied(), TOP + PANEL_HEIGHT - 12.0, TOP + 28.0);
    let mut left = LEFT;
    for panel in panels {
        svg.text(left + PANEL_WIDTH / 2.0, TOP, Anchor::Middle, INK, 13, &panel.title);
        for tick in scale.ticks() {
            let y = scale.at(tick);
            svg.line([left, y, left + PANEL_WIDTH, y], GRID, 1.0);
            if left == LEFT {
                svg.text(left - 8.0, y + 4.0, Anchor::End, FAINT, 11, &number(tick));
            }
        }
        let step = PANEL_WIDTH / f64::from(u32::try_from(panel.categories.len()).unwrap_or(1).max(1));
        let centre = |index: usize| left + step * (f64::from(u32::try_from(index).unwrap_or(0)) + 0.5);
        for (index, category) in panel.categories.iter().enumerate() {
            svg.text(centre(index), TOP + PANEL_HEIGHT + 16.0, Anchor::Middle, INK, 12, category);
        }
        svg.text(left + PANEL_WIDTH / 2.0, TOP + PANEL_HEIGHT + 36.0, Anchor::Middle, FAINT, 12, axis);
        for series in &panel.series {
            let points: Vec<_> =
                series.values.iter().enumerate().filter_map(|(index, value)| Some((index, (*value)?))).collect();
            for pair in points.windows(2) {
                let [(from, low), (to, high)] = [pair[0], pair[1]];
                svg.line([centre(from), scale.at(low), centre(to), scale.at(high)], series.colour, 1.6);
            }
            for (index, value) in points {
                svg.circle(centre(index), scale.at(value), 3.6, series.colour);
            }
        }
        for index in 0..panel.categories.len() {
            let mut labels: Vec<_> = panel
                .series
                .iter()
                .filter_map(|series| Some((series.values.get(index).copied().flatten()?, series.colour)))
                .collect();
            labels.sort_by(|one, other| other.0.total_cmp(&one.0));
            // From the top down, each at its mark but never on the one before.
            let mut free_from = TOP;
            for (value, colour) in labels {
                let y = (scale.at(value) + 4.0).max(free_from);
                svg.text(centre(index) + 8.0, y, Anchor::Start, colour, 11, &number(value));
                free_from = y + 13.0;
            }
        }
        left += PANEL_WIDTH + PANEL_GAP;
    }
    svg.finish()
}

/// Draws each of `gauges` as an interval on one logarithmic axis in units of its bound.
pub fn gauges(title: &str, gauges: &[Gauge]) -> String {
    const WIDTH: f64 = 980.0;
    const LEFT: f64 = 330.0;
    const RIGHT: f64 = 720.0;
    const TOP: f64 = 84.0;
    const ROW: f64 = 34.0;
    let rows = f64::from(u32::try_from(gauges.len()).unwrap_or(u32::MAX));
    let bottom = TOP + rows * ROW;
    let mut svg = Svg::new(WIDTH, bottom + 54.0, title);
    svg.text(16.0, 26.0, Anchor::Start, INK, 16, title);
    let explanation = "in units of the bound: an interval that reaches the line or lies left of it keeps the bound";
    svg.text(16.0, 46.0, Anchor::Start, FAINT, 12, explanation);
    let values = gauges.iter().flat_map(|gauge| gauge.share).chain([1.0]);
    let scale = LogScale::around(values, LEFT, RIGHT);
    for tick in scale.ticks() {
        let x = scale.at(tick);
        svg.line([x, TOP - 12.0, x, bottom], GRID, 1.0);
        svg.text(x, bottom + 16.0, Anchor::Middle, FAINT, 11, &number(tick));
    }
    let bound = scale.at(1.0);
    svg.line([bound, TOP - 12.0, bound, bottom], INK, 1.4);
    svg.text(bound, TOP - 18.0, Anchor::Middle, INK, 11, "bound");
    let mut y = TOP + ROW / 2.0 - 6.0;
    for gauge in gauges {
        let colour = if gauge.is_met { GOOD } else { BAD };
        let [low, median, high] = gauge.share.map(|share| scale.at(share));
        svg.text(16.0, y + 4.0, Anchor::Start, INK, 12, &gauge.name);
        svg.line([low, y, high, y], colour, 3.0);
        svg.line([low, y - 5.0, low, y + 5.0], colour, 1.6);
        svg.line([high, y - 5.0, high, y + 5.0], colour, 1.6);
        svg.circle(median, y, 4.2, colour);
        svg.text(RIGHT + 16.0, y + 4.0, Anchor::Start, colour, 12, &gauge.text);
        y += ROW;
    }
    svg.text(f64::midpoint(LEFT, RIGHT), bottom + 38.0, Anchor::Middle, FAINT, 12, "share of the bound used");
    svg.finish()
}

/// A number with about three digits, as it is read.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let decimals = if size >= 100.0 || value == 0.0 {
        0
    } else if size >= 10.0 {
        1
    } else if size >= 0.1 {
        2
    } else {
        3
    };
    let text = format!("{value:.decimals$}");
    if size < 1e4 {
        return text;
    }
    // Groups of three, as 1,234,567.
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
    let mut grouped = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn width_of(text: &str) -> f64 {
    f64::from(u32::try_from(text.chars().count()).unwrap_or(0))
}

/// Maps values to positions between two ends, by their logarithm.
struct LogScale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl LogScale {
    /// A scale for `values`, with some room at both ends.
    fn around(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values
            .filter(|value| *value > 0.0)
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        let (low, high) = if high > 0.0 { (low, high) } else { (1.0, 1.0) };
        Self { low: (low * 0.8).log10(), high: (high * 1.25).log10(), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let value = value.max(f64::MIN_POSITIVE).log10().clamp(self.low, self.high);
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Round values within the scale: 1, 2 and 5 times powers of ten, or the powers alone where that is too many.
    fn ticks(&self) -> Vec<f64> {
        let steps: &[f64] = if self.high - self.low > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        (-9..12)
            .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)))
            .filter(|tick| (self.low..=self.high).contains(&tick.log10()))
            .collect()
    }
}

#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

struct Svg(String);

impl Svg {
    fn new(width: f64, height: f64, title: &str) -> Self {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" role=\"img\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>",
            escaped(title)
        );
        Self(text)
    }

    fn text(&mut self, x: f64, y: f64, anchor: Anchor, colour: &str, size: u32, content: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\" font-size=\"{size}\">{}</text>",
            escaped(content)
        );
    }

    fn line(&mut self, ends: [f64; 4], colour: &str, width: f64) {
        let [x1, y1, x2, y2] = ends;
        let _ = writeln!(
            self.0,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        );
    }

    fn circle(&mut self, x: f64, y: f64, radius: f64, colour: &str) {
        let _ = writeln!(self.0, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{colour}\"/>");
    }

    fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_with_about_three_digits() {
        let written = [0.0, 0.0421, 0.45, 9.876, 45.64, 345.6, 1_234.5, 1_234_567.0].map(number);
        assert_eq!(written, ["0", "0.042", "0.45", "9.88", "45.6", "346", "1234", "1,234,567"]);
    }

    #[test]
    fn marks_stay_between_the_ends_of_the_scale() {
        let scale = LogScale::around([0.4, 10.0].into_iter(), 0.0, 100.0);
        assert!(scale.at(0.4) > 0.0 && scale.at(10.0) < 100.0);
        assert!((scale.at(0.0)).abs() < 1e-9);
        assert_eq!(scale.ticks(), [0.5, 1.0, 2.0, 5.0, 10.0]);
    }

    #[test]
    fn plots_are_closed_and_escaped() {
        let series = Series { name: "a<b".into(), colour: "#000000", values: vec![Some(1.0), None] };
        let panel = Panel { title: "p".into(), categories: vec!["1".into(), "16".into()], series: vec![series] };
        let gauge = Gauge { name: "n".into(), text: "≤ 1".into(), share: [0.5, 0.6, 0.7], is_met: true };
        for svg in [lines("t", "µs", "connections", &[panel]), gauges("t", &[gauge]), gauges("t", &[])] {
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("a<b"), "{svg}");
        }
    }
}
