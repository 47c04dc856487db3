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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// All pages, relative to the root.
    fn pages() -> Vec<PathBuf> {
        let output = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "--", "*.md"])
            .current_dir(root())
            .output()
            .unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(PathBuf::from)
            .filter(|page| root().join(page).exists())
            .collect()
    }

    /// Targets of links to files, as written.
    fn links(text: &str) -> impl Iterator<Item = &str> {
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        targets
            .map(|target| target.split('#').next().unwrap_or(""))
            .filter(|target| !target.is_empty() && !target.contains("://"))
    }

    /// Paths of the project in code marks.
    fn paths(text: &str) -> impl Iterator<Item = &str> {
        const FOLDERS: [&str; 6] = ["crates/", "docs/", "xtask/", "deploy/", "benches/", "clients/"];
        let words = text.split('`').skip(1).step_by(2);
        // With a blank, a star or the like it is a command or a pattern.
        words.filter(|word| {
            FOLDERS.iter().any(|folder| word.starts_with(folder)) && !word.contains([' ', '*', '{', '…', '<'])
        })
    }

    #[test]
    fn every_file_that_a_page_names_is_there() {
        let pages = pages();
        assert!(pages.len() > 20, "{pages:?}");
        let (mut missing, mut found) = (Vec::new(), 0);
        for page in pages {
            let text = fs::read_to_string(root().join(&page)).unwrap();
            let folder = page.parent().unwrap_or(Path::new(""));
            let linked = links(&text).map(|target| folder.join(target));
            for target in linked.chain(paths(&text).map(PathBuf::from)) {
                found += 1;
                if !root().join(&target).exists() {
                    missing.push(format!("{} names {}", page.display(), target.display()));
                }
            }
        }
        assert!(missing.is_empty(), "{missing:#?}");
        assert!(found > 100, "only {found} names were looked at");
    }

    #[test]
    fn links_and_paths_are_told_from_other_text() {
        let text = "see [x](a/b.md#part), [y](https://z) and `crates/config/`, `cargo run`, `docs/*.md`";
        assert_eq!(links(text).collect::<Vec<_>>(), ["a/b.md"]);
        assert_eq!(paths(text).collect::<Vec<_>>(), ["crates/config/"]);
    }
}
