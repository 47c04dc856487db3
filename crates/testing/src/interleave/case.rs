//! What sessions do in a case.

use std::fmt;

use database_core::Script;

/// Makes a script anew for each order; its result is told as text.
pub type Make = Box<dyn Fn() -> Script<String>>;

/// A script of the program under test, as something that a case can repeat.
pub fn run<T: fmt::Debug + 'static>(make: impl Fn() -> Script<T> + 'static) -> Make {
    Box::new(move || make().map(|result| format!("{result:?}")))
}

/// Sessions and their scripts.
pub struct Case {
    pub(super) setup: Vec<Make>,
    pub(super) sessions: Vec<(&'static str, Vec<Make>)>,
    pub(super) clock_ms: Vec<i64>,
    pub(super) switches_max: usize,
    pub(super) finally: Vec<Make>,
}

impl fmt::Debug for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.sessions.iter().map(|(name, _)| *name).collect();
        formatter
            .debug_struct("Case")
            .field("sessions", &names)
            .field("clock_ms", &self.clock_ms)
            .finish_non_exhaustive()
    }
}

impl Case {
    /// A case that begins with these scripts, one after the other, before sessions meet.
    pub fn new(setup: Vec<Make>) -> Self {
        Self { setup, sessions: Vec::new(), clock_ms: Vec::new(), switches_max: usize::MAX, finally: Vec::new() }
    }

    /// Adds a session that carries out these scripts.
    pub fn session(mut self, name: &'static str, scripts: Vec<Make>) -> Self {
        self.sessions.push((name, scripts));
        self
    }

    /// At some moment, as a step of its own, the clock goes to so many ms after its start.
    pub fn clock(mut self, ms: i64) -> Self {
        self.clock_ms.push(ms);
        self
    }

    /// Plays only orders in which a session that could go on is interrupted at most so often. Long scripts have too many
    /// others, and what goes wrong does so after few.
    pub fn switches(mut self, max: usize) -> Self {
        self.switches_max = max;
        self
    }

    /// Scripts that the first session carries out when all have ended, to show what is left.
    pub fn finally(mut self, scripts: Vec<Make>) -> Self {
        self.finally = scripts;
        self
    }
}
