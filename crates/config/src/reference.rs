//! The page of options, made from the table of options and the kinds of sections with names.

use std::fmt::Write as _;

use crate::options::{Reload, options};
use crate::sections::section_kinds;

/// What each section is for, and which part reads it.
static SECTIONS: &[(Option<&str>, &str)] = &[
    (None, "Read by `tenure tubes`, `tenure serve` and `tenure daemon`."),
    (Some("serve"), "What `tenure serve` runs."),
    (Some("data"), "Read by the queue server and the daemon."),
    (Some("tubes"), "The queue server. Read by `tenure tubes` and `tenure serve`."),
    (Some("database"), "Read by the daemon."),
    (Some("http"), "The door of the daemon. Read by the daemon; by commands too, which look there without `[client]`."),
    (Some("client"), "Read by commands that ask the daemon. They want nothing else of the configuration."),
    (
        Some("cluster"),
        "The times of a member. Read by the daemon. They must obey `lease` ≥ 3 × `renew` + `statement_timeout` + \
            `margin`.",
    ),
    (Some("log"), "What programs say about themselves. Read by the queue server and the daemon."),
    (Some("telemetry"), "Read by the daemon."),
];

/// One Markdown table per section, in the order of the options.
#[must_use]
pub fn reference() -> String {
    let mut text = String::new();
    let mut current = Some("none yet");
    for option in options() {
        let (section, name) = option.section_and_name();
        if section != current {
            current = section;
            let heading = section.map_or("Outside all sections".to_owned(), |section| format!("`[{section}]`"));
            let about = SECTIONS.iter().find(|(name, _)| *name == section).map_or("", |(_, about)| about);
            let _ = write!(
                text,
                "\n### {heading}\n\n{about}\n\n| key | value | default | variable | reloaded | meaning \
                    |\n|---|---|---|---|---|---|\n"
            );
        }
        let alias = option.alias().map_or(String::new(), |alias| format!(", or `{alias}`, which wins"));
        let _ = writeln!(
            text,
            "| `{name}` | {} | {} | `{}`{alias} | {} | {} |",
            option.kind,
            option.default.map_or("not set".to_owned(), |default| format!("`{default}`")),
            option.variable(),
            option.reload().words(),
            option.about,
        );
    }
    for info in section_kinds() {
        let reload = if info.is_overlay { Reload::Overlay } else { Reload::No };
        let _ = write!(
            text,
            "\n### `{}`\n\n{} Reloaded: {}. No variable sets it.\n\n| key | value | default | meaning \
                |\n|---|---|---|---|\n",
            info.heading(),
            info.about,
            reload.words(),
        );
        for field in (info.fields)() {
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} |",
                field.key,
                field.kind,
                field.default.unwrap_or("must be set"),
                field.about
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_says_what_it_is_for() {
        for option in options() {
            let (section, _) = option.section_and_name();
            assert!(SECTIONS.iter().any(|(name, _)| *name == section), "{}", option.key);
        }
        for (section, _) in SECTIONS {
            assert!(options().iter().any(|option| option.section_and_name().0 == *section), "{section:?}");
        }
    }
}
