//! What a configuration is read from, apart from its being read.
//!
//! Owns: the text of the file and the variables that may be meant for an option.
//! Never: reads a file a second time. A process is handed what another one has found, so that all of a server have one
//! configuration, also when the file changes meanwhile.

use std::fmt::{self, Debug, Formatter};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What the layers of a configuration say, word for word: secrets included, so it must not stand in an argument, a
/// variable or a file.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// The file and its text, if there is one.
    pub(crate) file: Option<(PathBuf, String)>,
    /// Names and values.
    pub(crate) variables: Vec<(String, String)>,
}

impl Sources {
    /// The file that was found, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }
}

/// Without what stands in the file and in the variables.
impl Debug for Sources {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.variables.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Sources").field("file", &self.file()).field("variables", &names).finish()
    }
}
