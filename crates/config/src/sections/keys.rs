//! `[keys.NAME]`: keys of the HTTP interface that the configuration names.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{Field, FieldInfo, PLAIN_NAME, Section, SectionInfo, is_plain_name, words};
use crate::options::filled_text;
use crate::{Scope, Secret};

/// A key that the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// How the key itself is known.
    pub source: KeySource,
    /// What it may do; never empty.
    pub scopes: BTreeSet<Scope>,
}

/// How a key is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// What is stored of it: `sha256:` and 64 hexadecimal digits.
    Hash(Secret),
    /// The file in which it stands.
    File(PathBuf),
}

#[derive(Default)]
pub(super) struct Draft {
    hash: Option<Secret>,
    file: Option<PathBuf>,
    scopes: BTreeSet<Scope>,
}

static FIELDS: &[Field<Draft>] = &[
    Field {
        info: FieldInfo {
            key: "hash",
            kind: "`sha256:` and 64 digits",
            default: Some("not set"),
            about: "What is stored of the key, as `tenure key create` prints it. A key has either this or `file`.",
            expected: "`sha256:` and 64 hexadecimal digits in quotes, as `tenure key create` prints the hash",
            is_secret: true,
        },
        set: |draft, given| {
            let hash = filled_text(given)?;
            let digits = hash.strip_prefix("sha256:")?;
            let is_hash = digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            draft.hash = is_hash.then(|| Secret::new(hash));
            draft.hash.is_some().then_some(())
        },
    },
    Field {
        info: FieldInfo {
            key: "file",
            kind: "path",
            default: Some("not set"),
            about: "File with the key itself, readable by its owner alone (0600).",
            expected: r#"a path in quotes, such as "/etc/tenure/worker.key""#,
            is_secret: false,
        },
        set: |draft, given| {
            draft.file = Some(PathBuf::from(filled_text(given)?));
            Some(())
        },
    },
    Field {
        info: FieldInfo {
            key: "scopes",
            kind: "list of `read`, `write`, `execute`, `worker`, `events`, `admin`",
            default: None,
            about: "What the key may do; `admin` is everything.",
            expected: r#"a list of "read", "write", "execute", "worker", "events" and "admin", such as ["read", "worker"]"#,
            is_secret: false,
        },
        set: |draft, given| {
            draft.scopes = words(given)?.into_iter().map(Scope::parse).collect::<Option<_>>()?;
            (!draft.scopes.is_empty()).then_some(())
        },
    },
];

impl Section for KeyEntry {
    type Draft = Draft;
    type Whole = Self;
    const INFO: SectionInfo = SectionInfo {
        kind: "keys",
        name: "NAME",
        about: "A key of the HTTP interface. Keys made by `tenure key create` are in the database instead; both \
            kinds count alike.",
        is_overlay: false,
        is_repeated: false,
        fields: || FIELDS.iter().map(|field| &field.info).collect(),
        name_rule: PLAIN_NAME,
        is_name: is_plain_name,
    };

    fn fields() -> &'static [Field<Draft>] {
        FIELDS
    }

    fn finish(draft: Draft) -> Result<Self, String> {
        let source = match (draft.hash, draft.file) {
            (Some(hash), None) => KeySource::Hash(hash),
            (None, Some(file)) => KeySource::File(file),
            (None, None) => return Err("has neither hash nor file; write one of them".to_owned()),
            (Some(_), Some(_)) => return Err("has both hash and file; write one of them".to_owned()),
        };
        Ok(Self { source, scopes: draft.scopes })
    }

    fn gather(mut sections: Vec<Self>) -> Result<Self, String> {
        Ok(sections.remove(0))
    }
}
