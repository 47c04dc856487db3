//! How the libraries come onto the machine: pinned versions, from their own package managers, below `target/clients/`
//! where the manager allows it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::{Places, must};

/// Registries and mirrors are slow at times; no promise to users.
const INSTALL_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Of Debian, as packages of this release; each with the version that the programs are written for.
const RUBY_PACKAGE: (&str, &str) = ("ruby-beaneater", "1.1.1-1");
const PHP_PACKAGE: (&str, &str) = ("php-pda-pheanstalk", "4.0.4-1");

/// The interpreter that has `clients/python/requirements.txt`.
fn python(places: &Places, notes: &mut Vec<String>) -> anyhow::Result<PathBuf> {
    let requirements = places.programs.join("python").join("requirements.txt");
    let folder = places.installed.join("python");
    let interpreter = folder.join("bin").join("python");
    if !is_current(&requirements, &folder)? {
        programs_of_debian(&[("python3", "python3"), ("pip3", "python3-pip")], &["python3-venv"], notes)?;
        must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder), INSTALL_LIMIT)?;
        must(
            Command::new(&interpreter)
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "-r"])
                .arg(&requirements),
            INSTALL_LIMIT,
        )?;
        mark_current(&requirements, &folder)?;
        notes.push(format!("installed greenstalk and pystalk with pip into {}", folder.display()));
    }
    Ok(interpreter)
}

/// greenstalk, in a virtual environment.
pub(super) fn greenstalk(places: &Places, notes: &mut Vec<String>) -> anyhow::Result<Command> {
    program(&python(places, notes)?, &places.programs.join("python").join("greenstalk_cycle.py"))
}

/// pystalk, in the same.
pub(super) fn pystalk(places: &Places, notes: &mut Vec<String>) -> anyhow::Result<Command> {
    program(&python(places, notes)?, &places.programs.join("python").join("pystalk_cycle.py"))
}

/// node-beanstalk, by the lock file.
pub(super) fn node_beanstalk(places: &Places, notes: &mut Vec<String>) -> anyhow::Result<Command> {
    programs_of_debian(&[("node", "nodejs"), ("npm", "npm")], &[], notes)?;
    let source = places.programs.join("node");
    let folder = places.installed.join("node");
    let lock = source.join("package-lock.json");
    if !is_current(&lock, &folder)? {
        fs::create_dir_all(&folder)?;
        for name in ["package.json", "package-lock.json"] {
            fs::copy(source.join(name), folder.join(name)).with_context(|| format!("failed to copy {name}"))?;
        }
        must(
            Command::new("npm").args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&folder),
            INSTALL_LIMIT,
        )?;
        mark_current(&lock, &folder)?;
        notes.push(format!("installed node-beanstalk with npm into {}", folder.display()));
    }
    let mut command = program(Path::new("node"), &source.join("node_beanstalk.js"))?;
    command.env("NODE_PATH", folder.join("node_modules"));
    Ok(command)
}

/// beanstalkc, compiled into a program.
pub(super) fn beanstalkc(places: &Places, notes: &mut Vec<String>) -> anyhow::Result<Command> {
    let folder = places.installed.join("rust");
    let executable = folder.join("debug").join("tenure-foreign-client-rust");
    let fresh = !executable.exists();
    cargo(&places.programs.join("rust"), &folder, &["build", "--locked"])?;
    if fresh {
        notes.push(format!("compiled the program for beanstalkc into {}", folder.display()));
    }
    Ok(Command::new(executable))
}

/// The unit tests that beanstalkc's package carries; its doc tests are all `no_run`, and its example needs port 11300.
pub(super) fn beanstalkc_suite(places: &Places) -> anyhow::Result<usize> {
    let folder = places.installed.join("rust");
    let sources = folder.join("beanstalkc-1.0.0");
    if !sources.join("Cargo.toml").exists() {
        let metadata = must(
            Command::new("cargo")
                .args(["metadata", "--quiet", "--locked", "--format-version", "1", "--manifest-path"])
                .arg(places.programs.join("rust").join("Cargo.toml")),
            INSTALL_LIMIT,
        )?;
        // The registry's copy must stay as it is, so the suite is compiled from one of ours.
        let manifest = manifest_of(&metadata, "beanstalkc").context("cargo does not say where beanstalkc is")?;
        let unpacked = manifest.parent().context("a manifest lies in a folder")?;
        must(Command::new("cp").args(["-r", "--no-preserve=mode"]).arg(unpacked).arg(&sources), INSTALL_LIMIT)?;
    }
    let text = cargo(&sources, &folder, &["test", "--locked", "--lib"])?;
    // test result: ok. 25 passed; 0 failed; …
    let result = text.lines().find_map(|line| line.strip_prefix("test result: ok. "));
    let count = result.and_then(|line| line.split(' ').next()).and_then(|count| count.parse::<usize>().ok());
    match count {
        Some(count) if count > 0 => Ok(count),
        _ => bail!("the suite ran no test:\n{text}"),
    }
}

/// The manifest's path of one package in the output of `cargo metadata`.
fn manifest_of(metadata: &str, name: &str) -> Option<PathBuf> {
    let start = metadata.find('{')?;
    let value: serde_json::Value = serde_json::from_str(&metadata[start..]).ok()?;
    let packages = value.get("packages")?.as_array()?;
    let package = packages.iter().find(|package| package.get("name").and_then(|it| it.as_str()) == Some(name))?;
    Some(PathBuf::from(package.get("manifest_path")?.as_str()?))
}

/// Runs cargo for a package that is not of our workspace.
fn cargo(package: &Path, target: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new("cargo");
    // What cargo sets for us says things about our workspace, not about theirs.
    for (name, _) in std::env::vars_os() {
        let name_bytes = name.as_encoded_bytes();
        let kept = [&b"CARGO_HOME"[..], b"CARGO_HTTP", b"CARGO_NET", b"CARGO_REGISTR"];
        if name_bytes.starts_with(b"CARGO_") && !kept.iter().any(|prefix| name_bytes.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    must(command.args(arguments).current_dir(package).env("CARGO_TARGET_DIR", target), INSTALL_LIMIT)
}

/// beaneater, as a package of Debian.
pub(super) fn beaneater(places: &Places, notes: &mut Vec<String>) -> anyhow::Result<Command> {
    package_of_debian(RUBY_PACKAGE, &["ruby"], notes)?;
    // Debian's interpreter: another one on the machine does not see Debian's libraries.
    program(Path::new("/usr/bin/ruby"), &places.programs.join("ruby").join("beaneater.rb"))
}

/// Pheanstalk, as a package of Debian.
pub(super) fn pheanstalk(places: &Places, notes: &mut Vec<String>) -> anyhow::Result<Command> {
    package_of_debian(PHP_PACKAGE, &["php-cli"], notes)?;
    program(Path::new("/usr/bin/php"), &places.programs.join("php").join("pheanstalk.php"))
}

/// A command that runs `file` with `interpreter`.
fn program(interpreter: &Path, file: &Path) -> anyhow::Result<Command> {
    if !file.exists() {
        bail!("{} is missing", file.display());
    }
    let mut command = Command::new(interpreter);
    command.arg(file);
    Ok(command)
}

/// Whether `folder` was installed from exactly this list.
fn is_current(list: &Path, folder: &Path) -> anyhow::Result<bool> {
    let wanted = fs::read(list).with_context(|| format!("failed to read {}", list.display()))?;
    Ok(fs::read(folder.join("installed-from")).is_ok_and(|installed| installed == wanted))
}

fn mark_current(list: &Path, folder: &Path) -> anyhow::Result<()> {
    fs::copy(list, folder.join("installed-from"))
        .map(|_| ())
        .with_context(|| format!("failed to mark {}", folder.display()))
}

/// Makes sure of one package in exactly this version, and of others in any.
fn package_of_debian((name, version): (&str, &str), others: &[&str], notes: &mut Vec<String>) -> anyhow::Result<()> {
    let installed = installed_version(name)?;
    let all_others = others.iter().map(|other| installed_version(other)).collect::<anyhow::Result<Vec<_>>>()?;
    if installed.as_deref() != Some(version) || all_others.iter().any(Option::is_none) {
        let pinned = format!("{name}={version}");
        let mut wanted = vec![pinned.as_str()];
        wanted.extend(others);
        apt_install(&wanted, notes)?;
    }
    Ok(())
}

/// Installs what is missing of programs that may also come from elsewhere; `along` are installed with them.
fn programs_of_debian(programs: &[(&str, &str)], along: &[&str], notes: &mut Vec<String>) -> anyhow::Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    let mut missing: Vec<&str> =
        programs.iter().filter(|(program, _)| !is_there(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    missing.extend(along);
    apt_install(&missing, notes)
}

/// The version of an installed package, if it is installed.
fn installed_version(name: &str) -> anyhow::Result<Option<String>> {
    let mut command = Command::new("dpkg-query");
    command.args(["--show", "--showformat", "${db:Status-Status} ${Version}", name]);
    let output = super::output_within(&mut command, INSTALL_LIMIT).context("packages of Debian are needed")?;
    Ok(output.text.strip_prefix("installed ").filter(|_| output.failure.is_none()).map(str::to_owned))
}

/// Installs packages of Debian, after an update of the lists if they do not know them.
fn apt_install(packages: &[&str], notes: &mut Vec<String>) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("these packages of Debian are needed, and only root may install them: {}", packages.join(" "));
    }
    let install = || {
        let mut command = Command::new("apt-get");
        command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        must(&mut command, INSTALL_LIMIT)
    };
    if install().is_err() {
        must(Command::new("apt-get").arg("update"), INSTALL_LIMIT)?;
        install()?;
    }
    notes.push(format!("installed with apt-get: {}", packages.join(" ")));
    Ok(())
}
