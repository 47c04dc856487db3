//! What a data directory says about itself in `manifest.toml`.
//!
//! Owns: its fields, its text, and which of them this program understands.
//! Never: reads or writes a file.

use std::fmt;

use serde::Deserialize;

/// The newest format of the manifest that this program knows.
pub const MANIFEST_FORMAT: u32 = 1;
/// Partitions of every data directory; a tube name belongs to one for ever.
pub const PARTITIONS: usize = 64;

/// How the queue is divided among processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topology {
    /// One process with all tubes.
    Single,
    /// So many owners, 1 to 64.
    Multi(u16),
}

impl Topology {
    fn mode(self) -> &'static str {
        match self {
            Topology::Single => "single",
            Topology::Multi(_) => "multi",
        }
    }

    fn slots(self) -> u16 {
        match self {
            Topology::Single => 1,
            Topology::Multi(owners) => owners,
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Topology::Single => formatter.write_str("single mode"),
            Topology::Multi(owners) => write!(formatter, "multi mode with {owners} owners"),
        }
    }
}

/// What a data directory is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format of this file, 1.
    pub format: u32,
    /// Drawn once: 16 hex digits that no YAML or JSON reader takes for a number.
    pub instance: String,
    /// `single` or `multi`.
    pub mode: String,
    /// How a tube name is assigned to a partition: `xxh3_64`.
    pub hash: String,
    /// Number of partitions, 64.
    pub partitions: usize,
    /// Number of owner slots.
    pub slots: u16,
    /// The slot of each partition.
    pub map: Vec<u16>,
    /// Ids below this carry no partition; 0 if there are none.
    pub single_ids_below: u64,
    /// The directory of the logs.
    pub logs: String,
}

impl Manifest {
    /// The manifest of a fresh directory.
    pub(crate) fn fresh(instance: String, topology: Topology) -> Manifest {
        let slots = topology.slots();
        Manifest {
            format: MANIFEST_FORMAT,
            instance,
            mode: topology.mode().to_owned(),
            hash: "xxh3_64".to_owned(),
            partitions: PARTITIONS,
            slots,
            map: (0..PARTITIONS as u16).map(|partition| partition % slots).collect(),
            single_ids_below: 0,
            logs: "logs-1".to_owned(),
        }
    }

    pub(crate) fn to_text(&self) -> String {
        let map: Vec<String> = self.map.iter().map(u16::to_string).collect();
        format!(
            "format = {}\ninstance = \"{}\"\nmode = \"{}\"\nhash = \"{}\"\npartitions = {}\nslots = {}\nmap = [{}]\n\
             single_ids_below = {}\nlogs = \"{}\"\n",
            self.format,
            self.instance,
            self.mode,
            self.hash,
            self.partitions,
            self.slots,
            map.join(", "),
            self.single_ids_below,
            self.logs
        )
    }

    /// How the directory is divided.
    pub fn topology(&self) -> Topology {
        if self.mode == "single" { Topology::Single } else { Topology::Multi(self.slots) }
    }

    /// Reads the text of a manifest. The error says what is wrong, for a message that begins with the file's name.
    pub(crate) fn from_text(text: &str) -> Result<Manifest, String> {
        #[derive(Deserialize)]
        struct FormatOnly {
            format: u32,
        }
        // First, because a newer one may have other fields.
        let format = toml::from_str::<FormatOnly>(text).map_err(|error| format!("it is no manifest: {error}"))?.format;
        if format != MANIFEST_FORMAT {
            return Err(format!("it has format {format}, and this program knows format {MANIFEST_FORMAT}"));
        }
        let manifest: Manifest = toml::from_str(text).map_err(|error| format!("it is no manifest: {error}"))?;
        let logs_number = manifest.logs.strip_prefix("logs-").and_then(|number| number.parse::<u32>().ok());
        if manifest.hash != "xxh3_64" || manifest.partitions != PARTITIONS {
            return Err(format!(
                "it divides tubes by {} into {} partitions, and this program by xxh3_64 into {PARTITIONS}",
                manifest.hash, manifest.partitions
            ));
        }
        let slots = manifest.slots;
        let known_mode = match manifest.mode.as_str() {
            "single" => slots == 1,
            "multi" => (1..=PARTITIONS).contains(&usize::from(slots)),
            _ => false,
        };
        if !known_mode {
            return Err(format!("mode \"{}\" with {slots} slots is no topology", manifest.mode));
        }
        if manifest.map.len() != PARTITIONS || manifest.map.iter().any(|slot| *slot >= slots) {
            return Err(format!("its map does not give each of {PARTITIONS} partitions one of {slots} slots"));
        }
        if logs_number.is_none() {
            return Err(format!("logs = \"{}\" is no directory of logs", manifest.logs));
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_reads_back_as_it_was_written() {
        for topology in [Topology::Single, Topology::Multi(3)] {
            let manifest = Manifest::fresh("a000000000000001".to_owned(), topology);
            let read = Manifest::from_text(&manifest.to_text()).unwrap();
            assert_eq!(read, manifest);
            assert_eq!(read.topology(), topology);
        }
    }

    #[test]
    fn a_newer_or_foreign_manifest_is_refused_and_named() {
        let text = Manifest::fresh("a000000000000001".to_owned(), Topology::Single).to_text();
        let newer = text.replace("format = 1", "format = 2\nfuture = true");
        assert!(Manifest::from_text(&newer).unwrap_err().contains("format 2"));
        for (old, new) in [
            ("partitions = 64", "partitions = 32"),
            ("slots = 1", "slots = 2"),
            ("xxh3_64", "md5"),
            ("\"logs-1\"", "\"../logs-1\""),
            ("map = [0, ", "map = ["),
            ("map = [0, ", "map = [1, "),
            ("mode", "moed"),
        ] {
            let changed = text.replacen(old, new, 1);
            assert_ne!(changed, text);
            assert!(Manifest::from_text(&changed).is_err(), "{changed}");
        }
    }
}
