//! A folder with configuration files, and what is said of them.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use expect_test::Expect;
use tenure_config::{Config, ConfigError, LoadOptions, Sources, load, load_with_sources};

/// A folder for one test, removed when it is dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// An empty one.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tenure-config-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Writes a file in it.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Loads what is there, with these variables and no others.
    pub(crate) fn load(&self, explicit: Option<&str>, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
        load(self.options(explicit, variables))
    }

    /// As [`Folder::load`], and what was read.
    pub(crate) fn load_with_sources(
        &self,
        explicit: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Result<(Config, Sources), ConfigError> {
        load_with_sources(self.options(explicit, variables))
    }

    fn options(&self, explicit: Option<&str>, variables: &[(&str, &str)]) -> LoadOptions<Vec<(String, String)>> {
        LoadOptions {
            explicit: explicit.map(PathBuf::from),
            environment: variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            folder: self.0.clone(),
            system_file: self.0.join("etc/tenure.toml"),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What is said of a file and variables that cannot be used.
#[track_caller]
pub(crate) fn check_error(file: &str, variables: &[(&str, &str)], expected: &Expect) {
    let folder = Folder::new();
    folder.write("tenure.toml", file);
    let error = folder.load(Some("tenure.toml"), variables).unwrap_err();
    assert_eq!(error.exit_code(), 78);
    expected.assert_eq(&error.to_string());
}
