//! `/metrics`: Prometheus' text format, version 0.0.4.
//!
//! Owns: the text. The figures belong to the parts.

use std::fmt::Write as _;

/// What a figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleKind {
    /// Only rises.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A figure, with at most one label.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the family, with its unit.
    pub name: String,
    /// What it is.
    pub kind: SampleKind,
    /// What it says, for people.
    pub help: &'static str,
    /// Label and value that tell samples of a family apart.
    pub label: Option<(&'static str, String)>,
    /// Its value.
    pub value: f64,
}

impl Sample {
    /// A figure without label.
    #[must_use]
    pub fn new(kind: SampleKind, name: impl Into<String>, help: &'static str, value: f64) -> Self {
        Self { name: name.into(), kind, help, label: None, value }
    }

    /// Of these several of a family.
    #[must_use]
    pub fn labelled(mut self, label: &'static str, value: impl Into<String>) -> Self {
        self.label = Some((label, value.into()));
        self
    }
}

/// More text of the same format, of another part or process. Its families have names of their own.
pub type MetricsSource = Box<dyn Fn() -> String + Send + Sync>;

/// The text. Samples of a family must stand together.
pub(crate) fn text(samples: &[Sample]) -> String {
    let mut text = String::new();
    let mut family = "";
    for sample in samples {
        if sample.name != family {
            family = &sample.name;
            let kind = match sample.kind {
                SampleKind::Counter => "counter",
                SampleKind::Gauge => "gauge",
            };
            let _ = write!(text, "# HELP {family} {}\n# TYPE {family} {kind}\n", sample.help);
        }
        let _ = match &sample.label {
            None => writeln!(text, "{family} {}", sample.value),
            Some((label, value)) => {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                writeln!(text, "{family}{{{label}=\"{value}\"}} {}", sample.value)
            }
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_explained_once_and_values_of_labels_are_escaped() {
        let sample = |value| Sample::new(SampleKind::Gauge, "tenure_x", "What x is.", value);
        let samples = [sample(1.0).labelled("name", "a\"b"), sample(2.5).labelled("name", "c")];
        assert_eq!(
            text(&samples),
            "# HELP tenure_x What x is.\n# TYPE tenure_x gauge\ntenure_x{name=\"a\\\"b\"} 1\ntenure_x{name=\"c\"} 2.5\n"
        );
    }
}
