//! Sections with names: `[keys.NAME]`, `[quota.NAME]`, `[prices."MODEL"]`.

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;

use common::{Folder, check_error};
use expect_test::expect;
use tenure_config::{Config, KeySource, Origin, QuotaLimit, QuotaPer, Scope};

const HASH: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn load(text: &str) -> Config {
    let folder = Folder::new();
    folder.write("tenure.toml", text);
    folder.load(Some("tenure.toml"), &[]).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn w12_keys_have_scopes_and_a_hash_or_a_file() {
    let config = load(&format!(
        "[keys.ci]\nhash = \"{HASH}\"\nscopes = [\"execute\", \"read\", \"read\"]\n[keys.worker-1]\nfile = \"/etc/k\"\nscopes = [\"worker\"]\n"
    ));
    let ci = &config.keys["ci"];
    assert!(matches!(&ci.source, KeySource::Hash(hash) if hash.expose() == HASH));
    assert_eq!(ci.scopes, BTreeSet::from([Scope::Read, Scope::Execute]));
    assert_eq!(config.keys["worker-1"].source, KeySource::File(PathBuf::from("/etc/k")));
    assert_eq!(config.keys.len(), 2);
}

#[test]
fn keys_that_cannot_be_are_told_with_their_lines() {
    check_error(
        r#"
            [keys.a]
            scopes = ["read"]
            [keys.b]
            hash = "sha256:canary"
            file = "f"
            scopes = ["read", "rite"]
            [keys.c]
            file = "f"
            scope = ["read"]
            colour = 1
            [keys.d]
            hash = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
            file = "f"
            scopes = ["read"]
            [keys.e]
            file = "f"
            scopes = []
            [keys.f]
            file = "f"
            scopes = "read"
            [keys."g h"]
            file = "f"
            scopes = ["read"]
            [[keys.i]]
            file = "f"
            scopes = ["read"]
            [keys.j]
            file = "f"
        "#,
        &[],
        &expect![[r#"
            tenure.toml:2: [keys.a] has neither hash nor file; write one of them
            tenure.toml:5: keys.b.hash is a text that is not shown; write `sha256:` and 64 hexadecimal digits in quotes, as `tenure key create` prints the hash
            tenure.toml:7: keys.b.scopes is the list ["read", "rite"]; write a list of "read", "write", "execute", "worker", "events" and "admin", such as ["read", "worker"]
            tenure.toml:10: unknown key keys.c.scope; did you mean keys.c.scopes?
            tenure.toml:11: unknown key keys.c.colour; the keys of [keys.NAME] are hash, file, scopes
            tenure.toml:12: [keys.d] has both hash and file; write one of them
            tenure.toml:18: keys.e.scopes is the list []; write a list of "read", "write", "execute", "worker", "events" and "admin", such as ["read", "worker"]
            tenure.toml:21: keys.f.scopes is "read"; write a list of "read", "write", "execute", "worker", "events" and "admin", such as ["read", "worker"]
            tenure.toml:22: [keys."g h"] has a name that cannot be; write letters, digits, _ and -, at most 64 of them
            tenure.toml:25: [keys.i] stands in double brackets; write it once, as [keys.i]
            tenure.toml:28: [keys.j] has no scopes; write a list of "read", "write", "execute", "worker", "events" and "admin", such as ["read", "worker"]"#]],
    );
    check_error(
        "keys = 5\n[quota]\nper = \"key\"\n",
        &[],
        &expect![[r#"
        tenure.toml:1: unknown key keys; [keys.NAME] is a section
        tenure.toml:3: unknown key quota.per; what stands in [quota.NAME] has a name of its own between the brackets"#]],
    );
}

#[test]
fn no_variable_sets_a_section_with_a_name() {
    check_error(
        "",
        &[
            ("TENURE_KEYS__CI__HASH", "x"),
            ("TENURE_QUOTA__DAILY", "1"),
            ("TENURE_PRICES__M__INPUT", "1"),
            ("TENURE_KEYS", "x"),
        ],
        &expect![[r#"
            TENURE_KEYS__CI__HASH: [keys.NAME] cannot be set by a variable; write it into the configuration file
            TENURE_PRICES__M__INPUT: [prices."MODEL"] cannot be set by a variable; write it into the configuration file
            TENURE_QUOTA__DAILY: [quota.NAME] cannot be set by a variable; write it into the configuration file"#]],
    );
}

#[test]
fn c17_quotas_count_runs_tokens_or_money() {
    let config = load(
        r#"
            [quota.a]
            per = "key"
            what = "runs"
            limit = 1_000
            [quota.b]
            per = "definition"
            what = "tokens"
            limit = 9_223_372_036_854_775_807
            [quota.c]
            per = "key"
            what = "money"
            limit = 12.5
        "#,
    );
    assert_eq!((config.quotas["a"].per, config.quotas["a"].limit), (QuotaPer::Key, QuotaLimit::Runs(1_000)));
    assert_eq!(
        (config.quotas["b"].per, config.quotas["b"].limit),
        (QuotaPer::Definition, QuotaLimit::Tokens(u64::MAX / 2))
    );
    let QuotaLimit::Money(money) = config.quotas["c"].limit else { panic!("not money") };
    assert_eq!(money.micro_units(), 12_500_000);
}

#[test]
fn quotas_that_cannot_be_are_told() {
    check_error(
        r#"
            [quota.a]
            per = "worker"
            what = "time"
            limit = -1
            [quota.b]
            [quota.c]
            per = "key"
            what = "runs"
            limit = 2.5
            [quota.d]
            per = "key"
            what = "tokens"
            limit = 9223372036854775808
            [quota.e]
            per = "key"
            what = "money"
            limit = "5"
            limti = 5
            [quota.f]
            per = "key"
            what = "money"
            limit = 9223372036855
        "#,
        &[],
        &expect![[r#"
            tenure.toml:3: quota.a.per is "worker"; write "key" or "definition"
            tenure.toml:4: quota.a.what is "time"; write "runs", "tokens" or "money"
            tenure.toml:5: quota.a.limit is the number -1; write a whole number without quotes, or for money one with at most six digits behind the point, such as 12.5
            tenure.toml:6: [quota.b] has no per; write "key" or "definition"; has no what; write "runs", "tokens" or "money"; has no limit; write a whole number without quotes, or for money one with at most six digits behind the point, such as 12.5
            tenure.toml:7: [quota.c] has the limit 2.5; write a whole number of runs
            tenure.toml:14: quota.d.limit is the number 9223372036854775808; write a whole number without quotes, or for money one with at most six digits behind the point, such as 12.5
            tenure.toml:18: quota.e.limit is "5"; write a whole number without quotes, or for money one with at most six digits behind the point, such as 12.5
            tenure.toml:19: unknown key quota.e.limti; did you mean quota.e.limit?
            tenure.toml:20: [quota.f] has the limit 9223372036855; write a smaller amount of money"#]],
    );
}

#[test]
fn prices_are_exact_and_follow_each_other_in_time() {
    let config = load(
        r#"
            [prices."gpt-4.1"]
            input = 2
            output = 8.000001
            cached = 0.5
            [[prices."a/b:c"]]
            input = 1.5
            output = 3
            from = 2026-07-01
            [[prices."a/b:c"]]
            input = 2.5
            output = 3
            until = 2026-07-01
        "#,
    );
    let [price] = config.prices["gpt-4.1"].as_slice() else { panic!("not one price") };
    let units = [price.input, price.output, price.cached].map(|money| money.micro_units());
    assert_eq!(units, [2_000_000, 8_000_001, 500_000]);
    assert_eq!((price.from, price.until), (None, None));
    let prices = &config.prices["a/b:c"];
    assert_eq!(prices.iter().map(|price| price.cached.micro_units()).collect::<Vec<_>>(), [2_500_000, 1_500_000]);
    assert_eq!(prices[0].until.map(|day| day.to_string()).as_deref(), Some("2026-07-01"));
    assert_eq!(prices[1].from, prices[0].until);
}

#[test]
fn prices_that_cannot_be_are_told() {
    check_error(
        r#"
            [prices.a]
            input = "2"
            output = 1e3
            from = "soon"
            [prices.b]
            input = 2
            [[prices.c]]
            input = 1
            output = 1
            from = 2026-07-01
            until = 2026-06-01
            [[prices.d]]
            input = 1
            output = 1
            from = 2026-07-01
            [[prices.d]]
            input = 1
            output = 1
            from = 2026-08-01
            [[prices.e]]
            input = 1
            output = 1
            [[prices.e]]
            input = 1
            output = 1
            [prices."f g"]
            input = 1
            output = 1
            [prices.h]
            input = 2026-07-01
            output = 1.0000001
            from = 2026-07-01T10:00:00Z
        "#,
        &[],
        &expect![[r#"
            tenure.toml:3: prices.a.input is "2"; write an amount with at most six digits behind the point, without quotes, such as 2.5
            tenure.toml:4: prices.a.output is the number 1e3; write an amount with at most six digits behind the point, without quotes, such as 2.5
            tenure.toml:5: prices.a.from is "soon"; write a day without quotes, such as 2026-07-01
            tenure.toml:6: [prices.b] has no output; write an amount with at most six digits behind the point, without quotes, such as 2.5
            tenure.toml:8: [prices.c] is valid from 2026-07-01 until 2026-06-01; write a later day for until
            tenure.toml:13: [prices.d] has two prices from 2026-08-01 on; let one of them end with until before the other begins
            tenure.toml:21: [prices.e] has two prices from the beginning on; let one of them end with until before the other begins
            tenure.toml:27: [prices."f g"] has a name that cannot be; write the name of a model in at most 200 bytes, without quotes, blanks or control characters in it
            tenure.toml:31: prices.h.input is a date or time; write an amount with at most six digits behind the point, without quotes, such as 2.5
            tenure.toml:32: prices.h.output is the number 1.0000001; write an amount with at most six digits behind the point, without quotes, such as 2.5
            tenure.toml:33: prices.h.from is a date or time; write a day without quotes, such as 2026-07-01"#]],
    );
    check_error(
        "[prices]\na = []\nb = [1]\nc = 5\n",
        &[],
        &expect![[r#"
        tenure.toml:2: unknown key prices.a; what stands in [prices."MODEL"] has a name of its own between the brackets
        tenure.toml:3: unknown key prices.b; what stands in [prices."MODEL"] has a name of its own between the brackets
        tenure.toml:4: unknown key prices.c; what stands in [prices."MODEL"] has a name of its own between the brackets"#]],
    );
}

#[test]
fn what_is_set_is_shown_by_key_with_its_line_and_without_hashes() {
    let config = load(&format!(
        "[prices.\"gpt-4.1\"]\ninput = 2.50\noutput = 8\n[[prices.b]]\ninput = 1\noutput = 1\nuntil = 2026-07-01\n[[prices.b]]\noutput = 2\ninput = 2\nfrom = 2026-07-01\n[keys.ci]\nhash = \"{HASH}\"\nscopes = [\"read\"]\n"
    ));
    let shown: Vec<_> = config
        .effective()
        .into_iter()
        .filter(|option| option.key.starts_with("keys.") || option.key.starts_with("prices."))
        .map(|option| format!("{} = {}  # {}\n", option.key, option.value.unwrap(), option.origin))
        .collect();
    expect![[r#"
        keys.ci.hash = "***"  # tenure.toml:13
        keys.ci.scopes = ["read"]  # tenure.toml:14
        prices.b = [{ input = 1, output = 1, until = 2026-07-01 }, { input = 2, output = 2, from = 2026-07-01 }]  # tenure.toml:4
        prices."gpt-4.1".input = 2.50  # tenure.toml:2
        prices."gpt-4.1".output = 8  # tenure.toml:3
    "#]].assert_eq(&shown.concat());
    assert!(config.effective().iter().any(|option| option.origin == Origin::File("tenure.toml".into(), 2)));
    assert!(!format!("{config:?}").contains("0123456789abcdef"));
}
