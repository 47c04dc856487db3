//! `[quota.NAME]`: how much may be used in a day.

use super::{Field, FieldInfo, PLAIN_NAME, Section, SectionInfo, is_plain_name};
use crate::QuotaPer;
use crate::options::{number, text};
use crate::units::{Money, parse_digits};

/// How much may be used in a day, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Whose use is counted.
    pub per: QuotaPer,
    /// Of what, and how much.
    pub limit: QuotaLimit,
}

/// What a quota counts, and how much of it is allowed; at most [`i64::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaLimit {
    /// Runs that were started.
    Runs(u64),
    /// Tokens of models.
    Tokens(u64),
    /// What they cost.
    Money(Money),
}

#[derive(Default)]
pub(super) struct Draft {
    per: Option<QuotaPer>,
    what: Option<&'static str>,
    limit: String,
}

/// What can be counted, as a configuration writes it.
const COUNTED: [&str; 3] = ["runs", "tokens", "money"];

/// A number that the database can count to.
fn whole(number: &str) -> Option<u64> {
    parse_digits(number).filter(|number| i64::try_from(*number).is_ok())
}

static FIELDS: &[Field<Draft>] = &[
    Field {
        info: FieldInfo {
            key: "per",
            kind: "`key` or `definition`",
            default: None,
            about: "Whose use is counted: that of each key, or that of each definition.",
            expected: r#""key" or "definition""#,
            is_secret: false,
        },
        set: |draft, given| {
            draft.per = Some(QuotaPer::parse(text(given)?)?);
            Some(())
        },
    },
    Field {
        info: FieldInfo {
            key: "what",
            kind: "`runs`, `tokens` or `money`",
            default: None,
            about: "What is counted.",
            expected: r#""runs", "tokens" or "money""#,
            is_secret: false,
        },
        set: |draft, given| {
            let text = text(given)?;
            draft.what = Some(COUNTED.into_iter().find(|what| *what == text)?);
            Some(())
        },
    },
    Field {
        info: FieldInfo {
            key: "limit",
            kind: "number",
            default: None,
            about: "How much of it is allowed in a day (UTC): a whole number of runs or tokens, or an amount in the currency of the prices.",
            expected: "a whole number without quotes, or for money one with at most six digits behind the point, \
                such as 12.5",
            is_secret: false,
        },
        set: |draft, given| {
            let number = number(given)?;
            number.clone_into(&mut draft.limit);
            (whole(number).is_some() || Money::parse(number).is_some()).then_some(())
        },
    },
];

impl Section for Quota {
    type Draft = Draft;
    type Whole = Self;
    const INFO: SectionInfo = SectionInfo {
        kind: "quota",
        name: "NAME",
        about: "How much may be used in a day, checked when a run is started. Runs are not part of this version: a \
            quota is checked for mistakes, and nothing counts against it yet.",
        is_overlay: true,
        is_repeated: false,
        fields: || FIELDS.iter().map(|field| &field.info).collect(),
        name_rule: PLAIN_NAME,
        is_name: is_plain_name,
    };

    fn fields() -> &'static [Field<Draft>] {
        FIELDS
    }

    fn finish(draft: Draft) -> Result<Self, String> {
        let per = draft.per.ok_or("has no per")?;
        let what = draft.what.unwrap_or_default();
        let whole = || {
            whole(&draft.limit).ok_or_else(|| format!("has the limit {}; write a whole number of {what}", draft.limit))
        };
        let limit = match what {
            "runs" => QuotaLimit::Runs(whole()?),
            "tokens" => QuotaLimit::Tokens(whole()?),
            _ => QuotaLimit::Money(
                Money::parse(&draft.limit)
                    .ok_or_else(|| format!("has the limit {}; write a smaller amount of money", draft.limit))?,
            ),
        };
        Ok(Self { per, limit })
    }

    fn gather(mut sections: Vec<Self>) -> Result<Self, String> {
        Ok(sections.remove(0))
    }
}
