//! `[prices."MODEL"]`: what the tokens of a model cost.

use super::{Field, FieldInfo, Section, SectionInfo};
use crate::options::{number, text};
use crate::units::{Day, Money};
use crate::value::Value;

/// What the tokens of a model cost, over a span of days in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// For a million tokens that a model reads.
    pub input: Money,
    /// For a million tokens that it writes.
    pub output: Money,
    /// For a million tokens that it reads from a cache.
    pub cached: Money,
    /// First day; `None`: since ever.
    pub from: Option<Day>,
    /// First day on which it is valid no more; `None`: for ever.
    pub until: Option<Day>,
}

#[derive(Default)]
pub(super) struct Draft {
    input: Option<Money>,
    output: Option<Money>,
    cached: Option<Money>,
    from: Option<Day>,
    until: Option<Day>,
}

const AMOUNT: &str = "an amount with at most six digits behind the point, without quotes, such as 2.5";
const DAY: &str = "a day without quotes, such as 2026-07-01";

fn money(given: &Value) -> Option<Money> {
    Money::parse(number(given)?)
}

fn day(given: &Value) -> Option<Day> {
    match given {
        Value::Date(date) => Day::parse(date),
        given => Day::parse(text(given)?),
    }
}

static FIELDS: &[Field<Draft>] = &[
    Field {
        info: FieldInfo {
            key: "input",
            kind: "amount",
            default: None,
            about: "For a million tokens that the model reads.",
            expected: AMOUNT,
            is_secret: false,
        },
        set: |draft, given| {
            draft.input = Some(money(given)?);
            Some(())
        },
    },
    Field {
        info: FieldInfo {
            key: "output",
            kind: "amount",
            default: None,
            about: "For a million tokens that it writes.",
            expected: AMOUNT,
            is_secret: false,
        },
        set: |draft, given| {
            draft.output = Some(money(given)?);
            Some(())
        },
    },
    Field {
        info: FieldInfo {
            key: "cached",
            kind: "amount",
            default: Some("as `input`"),
            about: "For a million tokens that it reads from a cache.",
            expected: AMOUNT,
            is_secret: false,
        },
        set: |draft, given| {
            draft.cached = Some(money(given)?);
            Some(())
        },
    },
    Field {
        info: FieldInfo {
            key: "from",
            kind: "day",
            default: Some("since ever"),
            about: "First day (UTC) of this price.",
            expected: DAY,
            is_secret: false,
        },
        set: |draft, given| {
            draft.from = Some(day(given)?);
            Some(())
        },
    },
    Field {
        info: FieldInfo {
            key: "until",
            kind: "day",
            default: Some("for ever"),
            about: "First day (UTC) after this price.",
            expected: DAY,
            is_secret: false,
        },
        set: |draft, given| {
            draft.until = Some(day(given)?);
            Some(())
        },
    },
];

impl Section for Price {
    type Draft = Draft;
    type Whole = Vec<Self>;
    const INFO: SectionInfo = SectionInfo {
        kind: "prices",
        name: "\"MODEL\"",
        about: "What the tokens of a model cost, for a million of them, in the one currency of this installation. A \
            price that changed stands as `[[prices.\"MODEL\"]]` once for each span of days. Runs are not part of \
            this version: prices are checked for mistakes, and nothing is reckoned by them yet.",
        is_overlay: true,
        is_repeated: true,
        fields: || FIELDS.iter().map(|field| &field.info).collect(),
        name_rule: "the name of a model in at most 200 bytes, without quotes, blanks or control characters in it",
        is_name: |name| {
            let is_odd = |c: char| c.is_control() || c.is_whitespace() || "\"'\\".contains(c);
            // A name of points alone would lead elsewhere in a path of HTTP.
            (1..=200).contains(&name.len()) && !name.contains(is_odd) && name.contains(char::is_alphanumeric)
        },
    };

    fn fields() -> &'static [Field<Draft>] {
        FIELDS
    }

    fn finish(draft: Draft) -> Result<Self, String> {
        let input = draft.input.ok_or("has no input")?;
        let output = draft.output.ok_or("has no output")?;
        if let (Some(from), Some(until)) = (draft.from, draft.until)
            && until <= from
        {
            return Err(format!("is valid from {from} until {until}; write a later day for until"));
        }
        Ok(Self { input, output, cached: draft.cached.unwrap_or(input), from: draft.from, until: draft.until })
    }

    /// In the order of their days, which must not overlap.
    fn gather(mut prices: Vec<Self>) -> Result<Vec<Self>, String> {
        prices.sort_by_key(|price| price.from);
        for pair in prices.windows(2) {
            let (earlier, later) = (&pair[0], &pair[1]);
            match (earlier.until, later.from) {
                (Some(until), Some(from)) if until <= from => {}
                (_, from) => {
                    let from = from.map_or_else(|| "the beginning".to_owned(), |day| day.to_string());
                    return Err(format!(
                        "has two prices from {from} on; let one of them end with until before the other begins"
                    ));
                }
            }
        }
        Ok(prices)
    }
}
