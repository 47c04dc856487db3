//! Which modules may contain `unsafe`, and why; everything else must not.
//!
//! Owns: the list. The compiler's lint `unsafe_code` says the same, but any file can switch it off: so this check also
//! looks for the places where it is switched off.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::source;

/// A module that makes calls the type system cannot check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnsafeModule {
    /// The file, from the workspace's folder.
    pub(crate) path: &'static str,
    /// What needs it, and why no safe crate does it.
    pub(crate) reason: &'static str,
}

/// At most one module per crate: so a review of a crate's unsafe code is the review of one file.
pub(crate) const UNSAFE_MODULES: &[UnsafeModule] = &[
    UnsafeModule {
        path: "crates/supervisor/src/sys.rs",
        reason: "memory that processes share is mapped by a call that the type system cannot check",
    },
    UnsafeModule {
        path: "crates/tenure/src/allocator.rs",
        reason: "the allocator is told to give memory back through its C interface",
    },
    UnsafeModule {
        path: "crates/tubes-server/src/inherited.rs",
        reason: "socket activation hands descriptors down by number, which nothing in the type system owns",
    },
];

/// Files with `unsafe` that are not on `list`, entries of the list that no file justifies, and second entries of a
/// crate; one line each, with its place. An empty result is a pass.
///
/// # Errors
///
/// If the files cannot be listed or read.
pub(crate) fn violations(root: &Path, list: &[UnsafeModule]) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut used = vec![false; list.len()];
    for path in source::rust_files(root)? {
        let text =
            fs::read_to_string(root.join(&path)).with_context(|| format!("failed to read {}", path.display()))?;
        let listed = list.iter().position(|module| Path::new(module.path) == path);
        let mut lint_level = String::new();
        for token in source::tokens(&text) {
            let switched_off = token.text == "unsafe_code" && !matches!(lint_level.as_str(), "deny" | "forbid");
            match (token.text.as_str(), listed) {
                ("allow" | "expect" | "warn" | "deny" | "forbid", _) => lint_level.clone_from(&token.text),
                ("unsafe", Some(index)) => used[index] = true,
                (word, None) if word == "unsafe" || switched_off => {
                    found.push(format!("{}:{}: `{}` outside the list", path.display(), token.line, token.text));
                }
                _ => {}
            }
        }
    }
    for (index, module) in list.iter().enumerate() {
        if !used[index] {
            found.push(format!("{}: on the list, but without `unsafe`", module.path));
        }
        if module.reason.is_empty() {
            found.push(format!("{}: on the list without a reason", module.path));
        }
        if list[..index].iter().any(|other| crate_of(other.path) == crate_of(module.path)) {
            found.push(format!("{}: a second module of its crate", module.path));
        }
    }
    Ok(found)
}

/// `crates/NAME` of a path.
fn crate_of(path: &str) -> &str {
    path.split_once("/src/").map_or(path, |(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree as a clone would have it, with an `unsafe` block in a file that is not listed.
    fn planted() -> crate::tools::TemporaryFolder {
        let folder = crate::tools::TemporaryFolder::with_copy_of("unsafe-outside-the-list").unwrap();
        let status = std::process::Command::new("git").args(["init", "--quiet"]).current_dir(folder.path()).status();
        assert!(status.unwrap().success());
        folder
    }

    #[test]
    fn unsafe_outside_the_list_is_found_and_text_about_it_is_not() {
        let folder = planted();
        let list = [UnsafeModule { path: "crates/alpha/src/system_call.rs", reason: "for the test" }];
        assert_eq!(
            violations(folder.path(), &list).unwrap(),
            [
                "crates/alpha/src/lib.rs:5: `unsafe_code` outside the list",
                "crates/alpha/src/lib.rs:8: `unsafe` outside the list",
            ]
        );
    }

    #[test]
    fn entries_that_nothing_justifies_are_found() {
        let folder = planted();
        let list = [
            UnsafeModule { path: "crates/alpha/src/system_call.rs", reason: "" },
            UnsafeModule { path: "crates/alpha/src/lib.rs", reason: "for the test" },
            UnsafeModule { path: "crates/beta/src/gone.rs", reason: "for the test" },
        ];
        assert_eq!(
            violations(folder.path(), &list).unwrap(),
            [
                "crates/alpha/src/system_call.rs: on the list without a reason",
                "crates/alpha/src/lib.rs: a second module of its crate",
                "crates/beta/src/gone.rs: on the list, but without `unsafe`",
            ]
        );
    }
}
