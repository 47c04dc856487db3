//! The folder below which all servers of this process live, and the guard that clears it up.
//!
//! Owns: the folder, and one child, the guard: a shell that waits until this process has ended, however it does, kills
//! every process that still works in the folder, frees the servers' shared memory and removes the folder.
//!
//! Statics are never dropped, and a test that is killed drops nothing: so the servers' lives hang on a pipe. Its
//! writing end is ours and goes with us; at its reading end the guard finds the end of the file. The guard finds
//! servers by their working directory, which PostgreSQL's processes never leave, so it needs no list that could be out
//! of date, and meets nobody else's process whose number is the same.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::programs::Account;

/// Ends what is left. Waits for the end of its input, then kills in rounds until nothing works in the folder: a
/// process that starts another one while it is looked for is found in the next round. At most some ten seconds.
const GUARD: &str = r#"
read -r never
segments=$(for file in "$1"/*/data/postmaster.pid; do sed -n 's/^ *[0-9][0-9]*  *\([0-9][0-9]*\)$/\1/p' "$file"; done 2>/dev/null)
round=0
while [ $round -lt 200 ]; do
    found=
    for process in /proc/[0-9]*; do
        case "$(readlink "$process/cwd" 2>/dev/null)" in
            "$1"/*) kill -KILL "${process#/proc/}" 2>/dev/null; found=1 ;;
        esac
    done
    [ -n "$found" ] || break
    round=$((round + 1))
    sleep 0.05
done
for segment in $segments; do ipcrm -m "$segment" 2>/dev/null; done
rm -rf "$1"
"#;

struct Home {
    folder: PathBuf,
    /// Never waited for: its input is a pipe that closes together with everything else of this process.
    _guard: Child,
}

/// A folder for one server, which `account` owns. Whoever gets it removes it; if nobody does, the guard will.
#[track_caller]
pub(super) fn place(account: Account) -> PathBuf {
    static HOME: OnceLock<Home> = OnceLock::new();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let home = HOME.get_or_init(Home::new);
    let place = home.folder.join(COUNT.fetch_add(1, Ordering::Relaxed).to_string());
    make_folder(&place, 0o711);
    account.own(&place);
    place
}

impl Home {
    #[track_caller]
    fn new() -> Self {
        let named = |count: u32| std::env::temp_dir().join(format!("tenure-pg-{}-{count}", std::process::id()));
        // A process of the same number may have been killed together with its guard.
        let folder = (0..).map(named).find(|folder| !folder.exists()).expect("there are more numbers than folders");
        make_folder(&folder, 0o711);
        // A group of its own: what a terminal sends to the group of the test must not end the guard.
        let guard = Command::new("/bin/sh")
            .args(["-c", GUARD, "guard"])
            .arg(&folder)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        Self { folder, _guard: guard.expect("a shell") }
    }
}

/// Makes a folder with exactly this mode.
#[track_caller]
pub(super) fn make_folder(path: &Path, mode: u32) {
    fs::create_dir(path).unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode of our own folder");
}
