//! Switching to another account, completely and for good.

use crate::error::ServeError;
use crate::platform;
use nix::unistd::{Group, User};

/// The account to switch to.
#[derive(Debug)]
pub struct Account {
    user: User,
}

/// Number of a group by its name.
pub(crate) fn group_id(name: &str) -> Result<rustix::fs::Gid, ServeError> {
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(rustix::fs::Gid::from_raw(group.gid.as_raw())),
        _ => Err(ServeError::UnknownAccount { kind: "group", name: name.to_owned() }),
    }
}

impl Account {
    /// Looks the account up, before anything is opened for it.
    ///
    /// # Errors
    ///
    /// There is none of this name.
    pub fn find(name: &str) -> Result<Account, ServeError> {
        match User::from_name(name) {
            Ok(Some(user)) => Ok(Account { user }),
            _ => Err(ServeError::UnknownAccount { kind: "user", name: name.to_owned() }),
        }
    }

    /// Whether this process has it already.
    #[must_use]
    pub fn is_current(&self) -> bool {
        nix::unistd::geteuid() == self.user.uid
    }

    /// Gives it a file or folder that this process has made for it.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn give(&self, path: &std::path::Path) -> std::io::Result<()> {
        std::os::unix::fs::chown(path, Some(self.user.uid.as_raw()), Some(self.user.gid.as_raw()))
    }

    /// Gives up everything of the present account: supplementary groups, group, user, and the way back.
    ///
    /// # Errors
    ///
    /// A step did not succeed, or could be undone; the process must end.
    pub fn switch(&self) -> Result<(), ServeError> {
        let (uid, gid) = (self.user.uid, self.user.gid);
        let failed = |what: String| ServeError::Privileges { user: self.user.name.clone(), what };
        let step = |name: &str, result: nix::Result<()>| result.map_err(|error| failed(format!("{name}: {error}")));
        let no_new = || platform::no_new_privileges().map_err(|error| failed(format!("no_new_privs: {error}")));
        if nix::unistd::geteuid() == uid && nix::unistd::getegid() == gid && !uid.is_root() {
            return no_new();
        }
        step("setgroups", platform::drop_groups())?;
        step("setgid", platform::set_gid(gid))?;
        step("setuid", platform::set_uid(uid))?;
        if !uid.is_root() && nix::unistd::setuid(nix::unistd::Uid::from_raw(0)).is_ok() {
            return Err(failed("root could be regained".into()));
        }
        no_new()
    }
}
