//! Steps of the schema, and whether a program and a database belong together.
//!
//! A schema has a number, and so has what a program knows. Steps only add, so that a program may work on a schema newer
//! than it knows: each step says which number a program must know at least. What is removed is removed by a later release,
//! in a step that is marked.

use std::fmt;

/// One step of the schema, from the number below it to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Number of the schema after this step; dense from 1.
    pub version: u32,
    /// What it brings, in a word.
    pub name: &'static str,
    /// Statements for PostgreSQL.
    pub postgres: &'static str,
    /// Statements for SQLite.
    pub sqlite: &'static str,
    /// Number that a program must know at least to use the schema after this step.
    pub oldest_program: u32,
    /// Whether it may remove what no program needs that knows `oldest_program`.
    pub contracts: bool,
}

impl Migration {
    /// A step that only adds.
    #[must_use]
    pub const fn new(
        version: u32,
        name: &'static str,
        postgres: &'static str,
        sqlite: &'static str,
        oldest_program: u32,
    ) -> Self {
        Self { version, name, postgres, sqlite, oldest_program, contracts: false }
    }

    /// A step that removes as well.
    #[must_use]
    pub const fn contracting(self) -> Self {
        Self { contracts: true, ..self }
    }

    /// What is wrong with a list of steps, one line each: numbers that are not dense from 1, a need that no program can
    /// meet or that shrinks, and steps that remove without being marked.
    #[must_use]
    pub fn faults(list: &[Self]) -> Vec<String> {
        let mut faults = Vec::new();
        let mut oldest = 0;
        for (migration, expected) in list.iter().zip(1..) {
            let Self { version, name, postgres, sqlite, oldest_program, contracts } = migration;
            let mut fault = |what: String| faults.push(format!("migration {version} `{name}`: {what}"));
            if *version != expected {
                fault(format!("the number should be {expected}"));
            }
            if *oldest_program > *version {
                fault(format!("it needs a program that knows {oldest_program}, and brings {version}"));
            }
            if *oldest_program < oldest {
                fault(format!("it needs a program that knows {oldest_program}, and an earlier one needs {oldest}"));
            }
            oldest = oldest.max(*oldest_program);
            for (database, text) in [("PostgreSQL", postgres), ("SQLite", sqlite)] {
                if let Some(removal) = removal(text).filter(|_| !contracts) {
                    fault(format!("for {database} it does not only add ({removal}) and is not marked so"));
                }
            }
        }
        faults
    }
}

/// What the database says of its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    /// Its number; 0 if nothing was ever made there.
    pub version: u32,
    /// Number that a program must know at least.
    pub oldest: u32,
    /// Program that brought it there.
    pub program: String,
}

/// Whether a program and a database belong together. As text: which side is older, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// They do.
    Fits,
    /// The program is too old.
    DatabaseNewer {
        /// What the database says.
        schema: Schema,
        /// What the program knows.
        known: u32,
    },
    /// The schema lacks steps.
    DatabaseOlder {
        /// What the database says.
        schema: Schema,
        /// What the program knows.
        known: u32,
    },
}

impl Fit {
    /// Of a program that knows the schema up to number `known`.
    #[must_use]
    pub fn of(schema: Schema, known: u32) -> Self {
        if schema.version < known {
            Self::DatabaseOlder { schema, known }
        } else if schema.oldest > known {
            Self::DatabaseNewer { schema, known }
        } else {
            Self::Fits
        }
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fits => formatter.write_str("program and database fit"),
            Self::DatabaseNewer { schema: Schema { version, oldest, program }, known } => write!(
                formatter,
                "the program is older than the database: schema {version} (brought by {program}) needs a program that \
                 knows schema {oldest}, and this one knows {known}; start a newer program"
            ),
            Self::DatabaseOlder { schema: Schema { version: 0, .. }, known } => write!(
                formatter,
                "the database is older than the program: it has no schema yet, and this program needs schema {known}"
            ),
            Self::DatabaseOlder { schema: Schema { version, program, .. }, known } => write!(
                formatter,
                "the database is older than the program: it has schema {version} (brought by {program}), and this \
                 program needs schema {known}"
            ),
        }
    }
}

/// What in a text takes something away from programs that do not know it.
fn removal(text: &str) -> Option<&'static str> {
    statements(text).iter().find_map(|words| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        for (index, word) in words.iter().enumerate() {
            let before = index.checked_sub(1).map(|index| words[index]);
            match *word {
                "DROP" => return Some("DROP"),
                "RENAME" => return Some("RENAME"),
                "TRUNCATE" => return Some("TRUNCATE"),
                "DELETE" if before != Some("ON") => return Some("DELETE"),
                _ => {}
            }
        }
        if !matches!(words[..], ["ALTER", "TABLE", ..]) {
            return None;
        }
        let inner = || words.iter().enumerate().skip(1).filter(|(_, word)| **word == "ALTER").map(|(index, _)| index);
        for index in inner() {
            let rest = &words[index + 1..];
            let rest = rest.strip_prefix(&["COLUMN"]).unwrap_or(rest);
            match rest.get(1..) {
                Some(["TYPE", ..] | ["SET", "DATA", "TYPE", ..]) => return Some("ALTER … TYPE"),
                Some(["SET", "NOT", "NULL", ..]) => return Some("SET NOT NULL"),
                _ => {}
            }
        }
        // Programs that do not know the column leave it out.
        let adds_duty = words.windows(2).any(|pair| pair == ["NOT", "NULL"]) && !words.contains(&"DEFAULT");
        (adds_duty && words.contains(&"ADD")).then_some("a column NOT NULL without DEFAULT")
    })
}

/// The words of each statement, in capitals, without what stands in quotes and comments.
fn statements(text: &str) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let quoted =
            |close: &str, from: usize| rest[from..].find(close).map_or(rest.len(), |at| from + at + close.len());
        let length = match first {
            '\'' | '"' | '`' => quoted(&first.to_string(), 1),
            '-' if rest.starts_with("--") => quoted("\n", 2),
            '/' if rest.starts_with("/*") => quoted("*/", 2),
            ';' => {
                all.push(Vec::new());
                1
            }
            _ if first.is_alphabetic() || first == '_' => {
                let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                all.last_mut().expect("it begins with one").push(rest[..length].to_uppercase());
                length
            }
            _ => first.len_utf8(),
        };
        rest = &rest[length..];
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(version: u32, oldest: u32) -> Schema {
        Schema { version, oldest, program: "tenure 0.2.0".into() }
    }

    #[test]
    fn a_newer_schema_is_used_if_it_says_so_and_an_older_one_never() {
        assert_eq!(Fit::of(schema(5, 3), 5), Fit::Fits);
        assert_eq!(Fit::of(schema(6, 5), 5), Fit::Fits);
        let newer = Fit::of(schema(7, 6), 5);
        assert_eq!(
            newer.to_string(),
            "the program is older than the database: schema 7 (brought by tenure 0.2.0) needs a program that knows \
             schema 6, and this one knows 5; start a newer program"
        );
        let older = Fit::of(schema(4, 4), 5);
        assert_eq!(
            older.to_string(),
            "the database is older than the program: it has schema 4 (brought by tenure 0.2.0), and this program needs \
             schema 5"
        );
        assert!(matches!(Fit::of(schema(0, 0), 1), Fit::DatabaseOlder { .. }));
    }

    #[test]
    fn steps_only_add_unless_they_are_marked() {
        for (text, expected) in [
            ("CREATE TABLE a (b text REFERENCES c ON DELETE CASCADE, type text NOT NULL)", None),
            ("-- DROP it\nCREATE INDEX a ON b (c); /* DELETE */ INSERT INTO t VALUES ('DROP', \"rename\")", None),
            ("ALTER TABLE a ADD COLUMN type bigint NOT NULL DEFAULT 0; ALTER TABLE a ADD COLUMN b text", None),
            ("ALTER TYPE a ADD VALUE 'b'", None),
            ("UPDATE a SET b = 1 WHERE b IS NULL", None),
            ("create table a (); drop table b", Some("DROP")),
            ("ALTER TABLE a DROP COLUMN b", Some("DROP")),
            ("ALTER TABLE a RENAME TO b", Some("RENAME")),
            ("DELETE FROM a", Some("DELETE")),
            ("TRUNCATE a", Some("TRUNCATE")),
            ("ALTER TABLE a ALTER b TYPE text", Some("ALTER … TYPE")),
            ("ALTER TABLE a ADD c text, ALTER COLUMN b SET DATA TYPE text", Some("ALTER … TYPE")),
            ("ALTER TABLE a ALTER COLUMN b SET NOT NULL", Some("SET NOT NULL")),
            ("ALTER TABLE a ADD COLUMN b text NOT NULL", Some("a column NOT NULL without DEFAULT")),
        ] {
            assert_eq!(removal(text), expected, "{text}");
        }
        let removes = Migration::new(1, "away", "DROP TABLE a", "DROP TABLE a", 1);
        let faults = Migration::faults(&[removes]);
        assert_eq!(faults.len(), 2);
        assert_eq!(faults[0], "migration 1 `away`: for PostgreSQL it does not only add (DROP) and is not marked so");
        assert!(Migration::faults(&[removes.contracting()]).is_empty());
    }

    #[test]
    fn numbers_are_dense_and_needs_can_be_met() {
        let step = |version, oldest| Migration::new(version, "step", "SELECT 1", "SELECT 1", oldest);
        assert!(Migration::faults(&[step(1, 1), step(2, 1), step(3, 2)]).is_empty());
        for (list, expected) in [
            (vec![step(2, 1)], "the number should be 1"),
            (vec![step(1, 1), step(3, 1)], "the number should be 2"),
            (vec![step(1, 2)], "it needs a program that knows 2, and brings 1"),
            (vec![step(1, 1), step(2, 2), step(3, 1)], "it needs a program that knows 1, and an earlier one needs 2"),
        ] {
            let faults = Migration::faults(&list);
            assert!(faults[0].ends_with(expected), "{faults:?}");
        }
    }
}
