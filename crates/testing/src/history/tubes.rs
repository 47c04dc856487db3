//! Which tube each connection uses and which it watches before each of its commands, by what it has sent itself.

use super::parse::{Command, Connection, Reply};

/// The tubes of a connection at some moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tubes {
    pub(super) used: String,
    /// In the order of watching.
    pub(super) watched: Vec<String>,
}

impl Tubes {
    /// Before each command of the connection, and behind the last.
    pub(super) fn of(connection: &Connection) -> Vec<Tubes> {
        let mut now = Tubes { used: "default".to_owned(), watched: vec!["default".to_owned()] };
        let mut all = vec![now.clone()];
        for invocation in &connection.commands {
            let refused = matches!(&invocation.reply, Some((Reply::Line(line), _)) if line == "INTERNAL_ERROR");
            if let Command::Line(line) = &invocation.command
                && !invocation.failed
                && !refused
            {
                now.after(line);
            }
            all.push(now.clone());
        }
        all
    }

    fn after(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("use", name)) => name.clone_into(&mut self.used),
            Some(("watch", name)) if !self.watches(name) => self.watched.push(name.to_owned()),
            Some(("ignore", name)) if self.watched.len() > 1 => self.watched.retain(|watched| watched != name),
            _ => {}
        }
    }

    pub(super) fn watches(&self, name: &str) -> bool {
        self.watched.iter().any(|watched| watched == name)
    }
}
