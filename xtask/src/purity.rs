//! Crates of rules and bytes (`*-core`, `*-protocol`) can reach nothing outside themselves.
//!
//! Owns: which dependencies and which names such a crate must not have, and which role may depend on which.
//! Never: compiles anything; it reads `cargo metadata` and the source.
//!
//! The same state machines run in production, in the simulator and in model tests only as long as time, randomness and
//! I/O come in through their arguments.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::source::{self, Token};

/// The clippy configuration of every pure crate, word for word: clippy takes the nearest file, so it cannot be shared.
pub(crate) const RULES_CLIPPY: &str = include_str!("../rules-clippy.toml");

/// Crates that bring a runtime, sockets, processes, SQL, HTTP, randomness or the clock, directly or as a base of those.
const FORBIDDEN_CRATES: &[&str] = &[
    "async-io",
    "async-std",
    "mio",
    "polling",
    "smol",
    "tokio",
    "tokio-util", // runtimes and event loops
    "libc",
    "nix",
    "rustix",
    "signal-hook",
    "socket2", // system calls
    "diesel",
    "libsqlite3-sys",
    "postgres",
    "rusqlite",
    "sqlx",
    "tokio-postgres", // SQL
    "axum",
    "h2",
    "hyper",
    "hyper-util",
    "reqwest",
    "tonic",
    "tower-http",
    "ureq", // HTTP
    "fastrand",
    "getrandom",
    "oorandom",
    "rand",
    "rand_core",
    "uuid", // randomness
    "chrono",
    "time", // clocks; jiff reads one only when asked to, and time zones need it
    "crossbeam-channel",
    "rayon",
    "parking_lot", // threads
];

/// Modules of `std` that reach outside the process, the thread or the arguments.
const FORBIDDEN_MODULES: &[&str] = &["env", "fs", "net", "os", "process", "thread"];

/// Names that mean the clock or randomness wherever they stand.
const FORBIDDEN_NAMES: &[&str] = &["Instant", "RandomState", "SystemTime", "getrandom", "thread_rng"];

/// Maps whose default hasher is seeded at random, with the number of type arguments that leaves it in place.
const HASHED: &[(&str, usize)] = &[("HashMap", 2), ("HashSet", 1)];

/// A package of the workspace.
struct Member<'a> {
    name: &'a str,
    id: &'a str,
    folder: PathBuf,
}

/// What is wrong, one line each, and how many pure crates were looked at.
///
/// `metadata` is the output of `cargo metadata --format-version 1 --all-features`.
///
/// # Errors
///
/// If the metadata has another form than expected, or a file cannot be read.
pub(crate) fn violations(metadata: &str) -> anyhow::Result<(Vec<String>, usize)> {
    let metadata: Value = serde_json::from_str(metadata).context("cargo metadata is not JSON")?;
    let members = members(&metadata)?;
    let names = package_names(&metadata)?;
    let edges = edges(&metadata)?;
    let mut found = Vec::new();
    let mut pure = 0;
    for member in &members {
        let reached = reach(member.id, &edges);
        for (&id, path) in &reached {
            let name = names.get(id).copied().unwrap_or(id);
            let chain = || path.iter().map(|id| names.get(id).copied().unwrap_or(id)).collect::<Vec<_>>().join(" -> ");
            let inside = members.iter().any(|other| other.id == id);
            if is_pure(member.name) && FORBIDDEN_CRATES.contains(&name) {
                found.push(format!("{} depends on {name}: {}", member.name, chain()));
            }
            if inside && !may_depend(member.name, name) {
                found.push(format!("{} depends on {name}, which stands higher: {}", member.name, chain()));
            }
        }
        if is_pure(member.name) {
            pure += 1;
            scan_folder(&member.folder.join("src"), &mut found)?;
            check_clippy(member, &mut found);
        }
    }
    Ok((found, pure))
}

fn is_pure(name: &str) -> bool {
    name.ends_with("-core") || name.ends_with("-protocol")
}

/// Dependencies point one way: server -> store -> core -> protocol. Crates outside the scheme may use any.
fn may_depend(from: &str, to: &str) -> bool {
    // Rules may know the words of a protocol; the bytes know nothing.
    const ROLES: [&str; 4] = ["protocol", "core", "store", "server"];
    let rank = |name: &str| ROLES.iter().position(|role| name.rsplit('-').next() == Some(role));
    match (rank(from), rank(to)) {
        (None, _) => true,
        (Some(from), Some(to)) => to <= from,
        // Outside the scheme: only what serves has a use for configuration, the program or the test tools.
        (Some(from), None) => from == ROLES.len() - 1 && to != "tenure" && to != "xtask",
    }
}

fn members(metadata: &Value) -> anyhow::Result<Vec<Member<'_>>> {
    let ids: BTreeSet<&str> = array(metadata, "workspace_members")?.iter().filter_map(Value::as_str).collect();
    let mut members = Vec::new();
    for package in array(metadata, "packages")? {
        let id = text(package, "id")?;
        if ids.contains(id) {
            let manifest = Path::new(text(package, "manifest_path")?);
            let folder = manifest.parent().context("a manifest without a folder")?.to_owned();
            members.push(Member { name: text(package, "name")?, id, folder });
        }
    }
    ensure!(!members.is_empty(), "cargo metadata names no member of the workspace");
    Ok(members)
}

fn package_names(metadata: &Value) -> anyhow::Result<BTreeMap<&str, &str>> {
    array(metadata, "packages")?.iter().map(|package| Ok((text(package, "id")?, text(package, "name")?))).collect()
}

/// Package to the packages it needs at run or build time; what only its tests need is left out.
fn edges(metadata: &Value) -> anyhow::Result<BTreeMap<&str, Vec<&str>>> {
    let mut edges = BTreeMap::new();
    for node in array(metadata.get("resolve").context("cargo metadata without `resolve`")?, "nodes")? {
        let mut needs = Vec::new();
        for dependency in array(node, "deps")? {
            let kinds = array(dependency, "dep_kinds")?;
            if kinds.iter().any(|kind| kind.get("kind").and_then(Value::as_str) != Some("dev")) {
                needs.push(text(dependency, "pkg")?);
            }
        }
        edges.insert(text(node, "id")?, needs);
    }
    Ok(edges)
}

/// Every package that `from` needs, each with a shortest way to it; without `from` itself.
fn reach<'a>(from: &'a str, edges: &BTreeMap<&'a str, Vec<&'a str>>) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut reached = BTreeMap::from([(from, vec![from])]);
    let mut queue = VecDeque::from([from]);
    while let Some(id) = queue.pop_front() {
        let path = reached[id].clone();
        for &next in edges.get(id).into_iter().flatten() {
            if !reached.contains_key(next) {
                reached.insert(next, path.iter().copied().chain([next]).collect());
                queue.push_back(next);
            }
        }
    }
    reached.remove(from);
    reached
}

fn check_clippy(member: &Member<'_>, found: &mut Vec<String>) {
    let path = member.folder.join("clippy.toml");
    if fs::read_to_string(&path).ok().as_deref() != Some(RULES_CLIPPY) {
        found.push(format!("{}: not a copy of xtask/rules-clippy.toml", path.display()));
    }
}

fn scan_folder(folder: &Path, found: &mut Vec<String>) -> anyhow::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("failed to read {}", folder.display()))?;
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        let path = entry.path();
        if path.is_dir() {
            scan_folder(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
            found.extend(scan(&text).into_iter().map(|(line, what)| format!("{}:{line}: {what}", path.display())));
        }
    }
    Ok(())
}

/// The forbidden names in `source`, each with its line.
fn scan(source: &str) -> Vec<(usize, String)> {
    let tokens = source::tokens(source);
    let mut found = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let word = token.text.as_str();
        let after = &tokens[index + 1..];
        if FORBIDDEN_NAMES.contains(&word) {
            found.push((token.line, format!("names {word}")));
        }
        if word == "std" {
            for module in modules_after(after) {
                if FORBIDDEN_MODULES.contains(&module) {
                    found.push((token.line, format!("names std::{module}")));
                } else if matches!(module, "as" | "*" | "self") {
                    found.push((token.line, format!("`std::{module}` hides what is used")));
                }
            }
        }
        if let Some((_, arguments)) = HASHED.iter().find(|(name, _)| *name == word)
            && type_arguments(after) == Some(*arguments)
        {
            found.push((token.line, format!("{word} with the default hasher, whose order is random")));
        }
    }
    found
}

/// The first segments after `std`: one for `std::fs`, several for `std::{fs, net::TcpStream}`, `as` for a renaming.
fn modules_after(tokens: &[Token]) -> Vec<&str> {
    let text = |index: usize| tokens.get(index).map_or("", |token: &Token| token.text.as_str());
    match (text(0), text(1)) {
        ("as", _) => vec!["as"],
        ("::", "{") => {
            let mut modules = Vec::new();
            let mut depth = 0_usize;
            for (index, token) in tokens.iter().enumerate().skip(1) {
                match token.text.as_str() {
                    "{" => depth += 1,
                    "}" => depth -= 1,
                    word if depth == 1 && matches!(text(index - 1), "{" | ",") => modules.push(word),
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
            }
            modules
        }
        ("::", module) => vec![module],
        _ => Vec::new(),
    }
}

/// How many type arguments a `<…>` or `::<…>` at the start of `tokens` has; `None` if there is none.
fn type_arguments(tokens: &[Token]) -> Option<usize> {
    let tokens = match tokens.first()?.text.as_str() {
        "::" => &tokens[1..],
        _ => tokens,
    };
    if tokens.first()?.text != "<" {
        return None;
    }
    let mut depth = 0_usize;
    let mut count = 0;
    let mut pending = false;
    for (index, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            // The arrow of a function type closes nothing.
            ">" if index > 0 && tokens[index - 1].text == "-" => {}
            "<" | "(" | "[" | "{" => {
                pending |= depth > 0;
                depth += 1;
            }
            ">" | ")" | "]" | "}" => {
                depth -= 1;
                if depth == 0 {
                    return Some(count + usize::from(pending));
                }
            }
            "," if depth == 1 => {
                count += 1;
                pending = false;
            }
            _ => pending = true,
        }
    }
    None
}

fn array<'a>(value: &'a Value, key: &str) -> anyhow::Result<&'a Vec<Value>> {
    value.get(key).and_then(Value::as_array).with_context(|| format!("cargo metadata without the list `{key}`"))
}

fn text<'a>(value: &'a Value, key: &str) -> anyhow::Result<&'a str> {
    value.get(key).and_then(Value::as_str).with_context(|| format!("cargo metadata without the text `{key}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &[&str]) {
        let found: Vec<String> = scan(source).into_iter().map(|(line, what)| format!("{line}: {what}")).collect();
        assert_eq!(found, expected, "{source}");
    }

    #[test]
    fn planted_names_are_found() {
        check("let t = std::time::Instant::now();", &["1: names Instant"]);
        check("use std::time::{Duration, SystemTime};", &["1: names SystemTime"]);
        check("\nstd::fs::read(p)", &["2: names std::fs"]);
        check("use std::{fmt, net::{TcpStream, env}, thread};", &["1: names std::net", "1: names std::thread"]);
        check("use std as s;", &["1: `std::as` hides what is used"]);
        check("use std::*;", &["1: `std::*` hides what is used"]);
        check("x.hash(&mut RandomState::new())", &["1: names RandomState"]);
        let hasher = "1: HashMap with the default hasher, whose order is random";
        check("a: HashMap<u64, Vec<(u8, u8)>>", &[hasher]);
        check("x.collect::<HashMap<_, _>>()", &[hasher]);
        check("HashMap::<u8, fn(u8) -> u8>::default()", &[hasher]);
        check("HashSet<[u8; 4]>", &["1: HashSet with the default hasher, whose order is random"]);
    }

    #[test]
    fn innocent_names_are_not() {
        check("use std::collections::{BTreeMap, HashMap}; use std::time::Duration;", &[]);
        check("a: HashMap<u64, Vec<u8>, BuildHasherDefault<Identity>>, b: HashSet<u64, Fixed,>", &[]);
        check("// std::fs\nlet text = \"std::net Instant\";", &[]);
        check("fs::x; thread; my::std_fs; instant", &[]);
    }

    #[test]
    fn roles_depend_downwards_only() {
        for (from, to, allowed) in [
            ("tubes-server", "tubes-store", true),
            ("tubes-server", "tenure-config", true),
            ("tubes-store", "tubes-core", true),
            ("tubes-core", "tubes-protocol", true),
            ("tubes-core", "tubes-store", false),
            ("tubes-protocol", "tubes-core", false),
            ("tubes-store", "testing", false),
            ("tubes-server", "tenure", false),
            ("testing", "tubes-server", true),
            ("tenure", "tubes-server", true),
        ] {
            assert_eq!(may_depend(from, to), allowed, "{from} -> {to}");
        }
    }

    #[test]
    fn a_forbidden_dependency_of_a_dependency_is_found_but_not_one_of_tests_only() {
        let folder = crate::tools::TemporaryFolder::with_copy_of("impure-core").unwrap();
        let metadata = fs::read_to_string(folder.path().join("metadata.json"))
            .unwrap()
            .replace("FOLDER", folder.path().to_str().unwrap());
        fs::write(folder.path().join("alpha-core/clippy.toml"), RULES_CLIPPY).unwrap();
        let (found, pure) = violations(&metadata).unwrap();
        let place = folder.path().display();
        assert_eq!(
            found,
            [
                "alpha-core depends on mio: alpha-core -> middle -> mio".to_owned(),
                "alpha-core depends on alpha-server, which stands higher: alpha-core -> alpha-server".to_owned(),
                format!("{place}/alpha-core/src/lib.rs:4: names Instant"),
                format!("{place}/beta-protocol/clippy.toml: not a copy of xtask/rules-clippy.toml"),
            ]
        );
        assert_eq!(pure, 2);
    }
}
