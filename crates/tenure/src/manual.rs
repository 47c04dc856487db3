//! `tenure completions` and `tenure man`: what shells and `man` read, made from the command line itself.
//!
//! The page of `tenure tubes` is written by hand, because it says what beanstalkd's page says.

use crate::cli;
use crate::exit::{self, Failure};
use crate::output::say;
use clap::Args;
use clap_complete::Shell;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the one page that is written by hand, and the page.
const BY_HAND: (&str, &str) = ("tenure-tubes", include_str!("../../../docs/tenure-tubes.1"));

/// Which manual page.
#[derive(Debug, Args)]
pub(crate) struct ManualCall {
    /// A command, such as `tubes` or `config show`; without it the page of the program
    #[arg(value_name = "COMMAND", conflicts_with = "to")]
    command: Vec<String>,

    /// Write all pages into this folder instead
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Prints a script for `shell`.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::whole(), "tenure", &mut script);
    say!("{}", String::from_utf8_lossy(&script).trim_end());
    Ok(())
}

/// Prints a page, or writes all.
pub(crate) fn print(call: &ManualCall) -> Result<(), Failure> {
    let pages = pages().map_err(failed)?;
    if let Some(folder) = &call.to {
        return write(&pages, folder);
    }
    let name = ["tenure"].into_iter().chain(call.command.iter().map(String::as_str)).collect::<Vec<_>>().join("-");
    match pages.iter().find(|(other, _)| *other == name) {
        Some((_, page)) => {
            say!("{}", page.trim_end());
            Ok(())
        }
        None => Err(Failure::new(exit::USAGE, format!("there is no command `{}`", call.command.join(" ")))),
    }
}

fn write(pages: &[(String, String)], folder: &Path) -> Result<(), Failure> {
    /// As of everything that the system does not give.
    const SYSTEM: u8 = 10;
    for (name, page) in pages {
        let path = folder.join(format!("{name}.1"));
        std::fs::write(&path, page)
            .map_err(|error| Failure::new(SYSTEM, format!("cannot write {}: {error}", path.display())))?;
        say!("{}", path.display());
    }
    Ok(())
}

/// Every page by its name, without the number of its section.
fn pages() -> io::Result<Vec<(String, String)>> {
    let mut command = cli::whole().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages)?;
    Ok(pages)
}

fn add(command: &clap::Command, pages: &mut Vec<(String, String)>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let page = if name == BY_HAND.0 {
        BY_HAND.1.to_owned()
    } else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command.clone()).title(name.clone()).render(&mut page)?;
        String::from_utf8_lossy(&page).into_owned()
    };
    pages.push((name, page));
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| add(below, pages))
}

fn failed(error: io::Error) -> Failure {
    Failure::new(exit::FAILED, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_that_names_its_flags() {
        let pages = pages().unwrap();
        let page = |name: &str| &pages.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("{name}")).1;
        assert!(page("tenure").contains("config"));
        assert!(page("tenure-config-show").contains("json"));
        assert_eq!(page("tenure-tubes"), BY_HAND.1);
        for (name, page) in &pages {
            assert!(page.contains(".SH NAME") || page.contains(".Sh NAME"), "{name}");
        }
        let mut names: Vec<_> = pages.iter().map(|(name, _)| name).collect();
        names.dedup();
        assert_eq!(names.len(), pages.len());
    }

    #[test]
    fn every_shell_gets_a_script() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut cli::whole(), "tenure", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("completions") && script.contains("restart-slot"), "{shell}");
        }
    }
}
