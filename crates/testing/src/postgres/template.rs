//! A data directory as `initdb` makes it, kept for all tests, because making one takes seconds and copying it does not.
//!
//! Owns: the template in the system's temporary folder, named after version and account, and complete from the moment
//! it has its name. It has the role and the database of [`ROLE`](super::ROLE), and who may connect how.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::PoisonError;

use super::programs::{self, Account};
use super::{ROLE, SUPERUSER, home};
use crate::process::run;

/// Raised when what this module puts into a template changes.
const FORMAT: u32 = 1;

/// Who may connect: the superuser and replicas only by the socket, whose folder is closed to others; everybody's
/// loopback interface leads to the role without privileges.
const HBA: &str = "\
local all all trust
local replication all trust
host all tenure 127.0.0.1/32 trust
";

/// Makes `target` a data directory of its own.
#[track_caller]
pub(super) fn copy_to(target: &Path, account: Account) {
    let template = template(account);
    copy(&template, target, account).unwrap_or_else(|error| panic!("cannot copy {}: {error}", template.display()));
}

fn copy(from: &Path, to: &Path, account: Account) -> std::io::Result<()> {
    home::make_folder(to, 0o700);
    account.own(to);
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target, account)?;
        } else {
            fs::copy(entry.path(), &target)?;
            account.own(&target);
        }
    }
    Ok(())
}

/// Where the template is; made if it is not there.
#[track_caller]
fn template(account: Account) -> PathBuf {
    static ONE: Mutex<()> = Mutex::new(());
    let _one_makes_it = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("tenure-pg-template-{FORMAT}-{}-{}", programs::version(), account.user());
    let path = std::env::temp_dir().join(name);
    if let Ok(found) = fs::symlink_metadata(&path) {
        // Anybody can make a folder there; what others made must not become a server of ours.
        assert!(found.is_dir() && found.uid() == account.user(), "{} belongs to somebody else", path.display());
        return path;
    }
    let place = home::place(account);
    let made = place.join("data");
    make(&made, &place, account);
    if let Err(error) = fs::rename(&made, &path) {
        // Another process was faster, and its template is as good.
        assert!(path.join("PG_VERSION").is_file(), "cannot rename to {}: {error}", path.display());
    }
    drop(fs::remove_dir_all(&place));
    path
}

#[track_caller]
fn make(data: &Path, place: &Path, account: Account) {
    let mut initdb = account.command(programs::of_server("initdb"), place);
    initdb.args(["-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-U", SUPERUSER, "-D"]).arg(data);
    run(&mut initdb).expect("initdb makes a data directory");
    fs::write(data.join("pg_hba.conf"), HBA).expect("a file of our own");

    // The server's own way to work on a data directory without connections.
    let mut single = account.command(programs::of_server("postgres"), place);
    single.args(["--single", "-c", "exit_on_error=true", "-D"]).arg(data).arg("postgres");
    single.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut single = single.spawn().expect("postgres --single");
    let statements = format!("CREATE ROLE {ROLE} LOGIN;\nCREATE DATABASE {ROLE} OWNER {ROLE} TEMPLATE template0;\n");
    single.stdin.take().expect("the pipe was asked for").write_all(statements.as_bytes()).expect("a short text");
    let output = single.wait_with_output().expect("wait for a child of ours");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("ERROR:"), "postgres --single failed: {said}");
}
