//! From the process that reads the configuration to those that it starts.
//!
//! Owns: a text that means the same configuration, secrets and origins included.
//! Never: says how it travels. It holds passwords, so it must not stand in an argument, a variable or a file.

use serde::{Deserialize, Serialize};

use crate::options::options;
use crate::sections::Raw;
use crate::value::Value;
use crate::{Config, ConfigError, Origin, Problem, Secret, load};

#[derive(Serialize, Deserialize)]
struct HandOver {
    options: Vec<(String, Value, Origin)>,
    sections: Raw,
}

impl Config {
    /// This configuration as a text for [`Config::take_over`] of the same program.
    #[must_use]
    pub fn hand_over(&self) -> Secret {
        let set = options().iter().filter_map(|option| match self.origin(option.key) {
            Origin::Default => None,
            origin => Some((option.key.to_owned(), option.value(self)?, origin)),
        });
        let all = HandOver { options: set.collect(), sections: self.raw.clone() };
        // Its maps have texts as keys, so there is nothing that JSON could not say.
        Secret::new(serde_json::to_string(&all).unwrap_or_default())
    }

    /// The configuration that [`Config::hand_over`] made a text of.
    ///
    /// # Errors
    ///
    /// If the text is of another program.
    pub fn take_over(text: &str) -> Result<Self, ConfigError> {
        let all: HandOver = serde_json::from_str(text).map_err(|_| {
            let wrong =
                "the configuration that was handed over cannot be read; start all processes by one program".to_owned();
            ConfigError::from(Problem::Rule { origin: Origin::Default, wrong })
        })?;
        let mut config = Self { raw: all.sections, ..Self::default() };
        let mut problems = Vec::new();
        for (key, value, origin) in all.options {
            problems.extend(load::set_value(&mut config, &key, &value, origin).err());
        }
        config.finish(problems)
    }
}
