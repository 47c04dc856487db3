//! The parts of the documentation that are made from the program.
//!
//! Owns: where they stand. Tests beside what they are made from fail when they are out of date.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

/// Page, the line behind which everything is generated, and the example that prints it.
const PAGES: &[(&str, &str, [&str; 2])] = &[(
    "docs/configuration.md",
    "<!-- Everything from here on is written by `cargo xtask docs`. -->\n",
    ["tenure-config", "options"],
)];

/// Writes the generated part of every page.
///
/// # Errors
///
/// If a page has no marker, its program fails, or it cannot be written.
pub(crate) fn write(root: &Path) -> anyhow::Result<()> {
    for (page, marker, [package, example]) in PAGES {
        let path = root.join(page);
        let text = fs::read_to_string(&path).with_context(|| format!("failed to read {page}"))?;
        let (written, generated) = text.split_once(marker).with_context(|| format!("{page} has no marker"))?;
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["run", "--quiet", "--package", package, "--example", example])
            .current_dir(root)
            .output()
            .context("failed to start cargo")?;
        ensure!(output.status.success(), "{example} of {package} failed: {}", String::from_utf8_lossy(&output.stderr));
        let fresh = String::from_utf8(output.stdout).context("the generated part is not UTF-8")?;
        let changed = if fresh == generated { "unchanged" } else { "written" };
        fs::write(&path, format!("{written}{marker}{fresh}")).with_context(|| format!("failed to write {page}"))?;
        println!("{page}: {changed}");
    }
    Ok(())
}
