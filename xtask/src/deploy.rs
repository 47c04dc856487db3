//! The files of `deploy/` are what systemd and a container builder accept.
//!
//! Owns: how each is verified where the tool for it exists.
//! Never: installs a unit or keeps an image.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::cargo::PROFILE;
use crate::runner::Step;
use crate::tools::find_program;

/// Highest exposure that systemd's analyser may find, in tenths of its scale from 0 (protected) to 10 (open). It calls
/// everything below 2.0 "OK" at worst; what is left is that the service may open IP sockets, which is its purpose.
const EXPOSURE_TENTHS_MAX: u32 = 20;

/// The phase for the systemd units.
///
/// # Errors
///
/// If systemd finds fault with a unit, or rates the service as less protected than it was meant to be.
pub(crate) fn units(step: &Step<'_>) -> anyhow::Result<String> {
    if find_program("systemd-analyze").is_none() {
        return step.skip("there is no systemd-analyze here");
    }
    // Systemd looks for the program where the unit says; a copy names the one just built.
    let folder = step.target.join("check").join("units");
    fs::create_dir_all(&folder)?;
    let program = step.target.join(PROFILE).join("tenure");
    let mut files = Vec::new();
    for name in ["tenure-tubes.socket", "tenure-tubes.service", "tenure.service"] {
        let text = fs::read_to_string(step.root.join("deploy").join(name)).with_context(|| format!("no {name}"))?;
        let file = folder.join(name);
        fs::write(&file, text.replace("/usr/bin/tenure", &program.to_string_lossy()))?;
        files.push(file);
    }
    // Unknown keys and sections are only warnings to it, and no reason to fail: so anything it says is one here.
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]).args(&files).env("SYSTEMD_LOG_COLOR", "false");
    let (passed, said) = step.try_run(&mut verify)?;
    ensure!(passed, "systemd-analyze verify refuses the units");
    let names_a_unit = ["tenure-tubes", "tenure.service"].iter().any(|name| said.contains(name));
    ensure!(!names_a_unit, "systemd-analyze verify has warnings about the units");

    let mut levels = Vec::new();
    for service in &files[1..] {
        let mut rate = Command::new("systemd-analyze");
        rate.args(["security", "--offline=true", "--no-pager", &format!("--threshold={EXPOSURE_TENTHS_MAX}")]);
        let (passed, said) = step.try_run(rate.arg(service))?;
        let overall = said.lines().find(|line| line.contains("Overall exposure level")).unwrap_or_default();
        let level = overall.rsplit_once("service: ").map_or("exposure not printed", |(_, level)| level.trim());
        let name = service.file_name().unwrap_or_default().to_string_lossy();
        ensure!(passed, "{name} is less protected than {EXPOSURE_TENTHS_MAX} tenths: {level}");
        levels.push(format!("{name} {level}"));
    }
    Ok(format!("exposure: {}", levels.join(", ")))
}

/// The phase for the container file.
///
/// # Errors
///
/// If a builder exists and the image does not build, or its program does not start.
pub(crate) fn container(step: &Step<'_>) -> anyhow::Result<String> {
    const IMAGE: &str = "tenure-check";
    let Some(builder) = builder(step)? else {
        return step.skip("there is no builder here: no podman, no buildah, no docker with a running engine");
    };
    let build: &[&str] = if builder == "buildah" { &["bud"] } else { &["build"] };
    step.run(
        Command::new(builder).args(build).args(["-t", IMAGE, "-f", "deploy/Containerfile", "."]).current_dir(step.root),
    )?;
    if builder != "buildah" {
        step.run(Command::new(builder).args(["run", "--rm", IMAGE, "-v"]))?;
        step.run(Command::new(builder).args(["image", "rm", IMAGE]))?;
    }
    Ok(format!("built by {builder}"))
}

fn builder(step: &Step<'_>) -> anyhow::Result<Option<&'static str>> {
    for builder in ["podman", "buildah"] {
        if find_program(builder).is_some() {
            return Ok(Some(builder));
        }
    }
    // The client alone cannot build: it must reach an engine.
    let docker = find_program("docker").is_some() && step.try_run(Command::new("docker").arg("info"))?.0;
    Ok(docker.then_some("docker"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    fn read(name: &str) -> String {
        std::fs::read_to_string(crate::root().join(name)).unwrap()
    }

    /// What a machine without a builder can still tell.
    #[test]
    fn the_container_file_copies_what_exists_and_ends_as_an_account_without_rights() {
        let file = read("deploy/Containerfile");
        let mut user = None;
        for line in file.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["COPY", flag, ..] if flag.starts_with("--from") => {}
                ["COPY", sources @ .., _to] => {
                    for source in sources {
                        assert!(crate::root().join(source).exists(), "{source} is copied but does not exist");
                    }
                }
                ["USER", name] => user = Some((*name).to_owned()),
                _ => {}
            }
        }
        let user = user.expect("no USER");
        assert!(!user.starts_with("0") && !user.starts_with("root"), "{user}");
    }

    #[test]
    fn the_container_file_builds_with_the_pinned_toolchain_and_all_members() {
        let toolchain = read("rust-toolchain.toml");
        let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap().trim_matches('"');
        let file = read("deploy/Containerfile");
        assert!(file.contains(&format!("FROM rust:{channel}-")), "toolchain {channel}");
        for folder in ["benches", "crates", "xtask"] {
            assert!(file.contains(&format!("COPY {folder} {folder}")), "{folder}");
        }
    }

    #[test]
    fn the_units_hold_every_protection_that_the_security_page_promises() {
        let unit = read("deploy/tenure-tubes.service");
        for line in [
            "NoNewPrivileges=yes",
            "ProtectSystem=strict",
            "ReadWritePaths=%S/tenure-tubes",
            "PrivateTmp=yes",
            "ProtectKernelLogs=yes",
            "ProtectKernelModules=yes",
            "ProtectKernelTunables=yes",
            "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
            "SystemCallFilter=@system-service",
            "MemoryDenyWriteExecute=yes",
            "LimitCORE=0",
            "RestartPreventExitStatus=5 10 11 12 33 78 111",
        ] {
            assert!(unit.lines().any(|other| other == line), "{line}");
        }
        assert!(unit.contains("\nLimitNOFILE="));
    }

    #[test]
    fn every_file_of_the_folder_is_explained() {
        let readme = read("deploy/README.md");
        let files: Vec<PathBuf> =
            std::fs::read_dir(crate::root().join("deploy")).unwrap().map(|entry| entry.unwrap().path()).collect();
        for file in files {
            let name = file.file_name().unwrap().to_str().unwrap().to_owned();
            assert!(name == "README.md" || readme.contains(&name), "{name} is not in deploy/README.md");
        }
    }
}
