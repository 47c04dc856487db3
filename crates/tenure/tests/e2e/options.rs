//! Command line: flags, their forms, defaults, refusals, and what is deliberately not read.

use std::ffi::OsStr;

use testing::process::{Folder, Launch};

use super::{Mode, in_both_modes, tubes};

/// Checks one line of `stats` of a server started like this.
#[track_caller]
fn check_stat(launch: &Launch, key: &str, expected: &str) {
    let server = launch.start();
    assert_eq!(server.connect().stat("stats", key), expected, "{key}");
}

/// Ends before it matters how many processes there would be.
#[test]
fn help_is_printed_and_ends_with_0() {
    for launch in [tubes().with(["-h"]), tubes().with(["-h"]).called_beanstalkd()] {
        let finished = launch.finish();
        assert_eq!(finished.code, Some(0), "{finished:?}");
        // Scripts read it from either stream; each of the original's options is in it.
        let text = finished.stdout + &finished.stderr;
        for option in ["-b", "-f", "-F", "-s", "-z", "-l", "-p", "-u", "-V", "-v", "-h"] {
            assert!(text.contains(option), "no {option} in {text}");
        }
    }
}

/// Ends before it matters how many processes there would be.
#[test]
fn the_version_is_printed_and_ends_with_0() {
    for launch in [tubes().with(["-v"]), tubes().with(["-v"]).called_beanstalkd()] {
        let finished = launch.finish();
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert!(finished.stdout.contains(env!("CARGO_PKG_VERSION")), "{finished:?}");
        assert_eq!(finished.stdout.lines().count(), 1, "{finished:?}");
    }
}

/// Ends before it matters how many processes there would be.
#[test]
fn wrong_usage_ends_with_5() {
    let wrong: [&[&str]; 16] = [
        &["-x"],
        &["--no-such-option"],
        &["operand"],
        &["-p"],
        &["-p", "x"],
        &["-p", "70000"],
        &["-z"],
        &["-z", "x"],
        &["-z", "-1"],
        &["-s", "x"],
        &["-f", "x"],
        &["-f"],
        &["-l"],
        &["-u"],
        &["-b"],
        &["-z", "10b"],
    ];
    for launch in [tubes(), tubes().called_beanstalkd()] {
        for arguments in wrong {
            let finished = launch.clone().with(arguments).finish();
            assert_eq!(finished.code, Some(5), "{arguments:?} {finished:?}");
            assert!(!finished.stderr.is_empty(), "{arguments:?} is refused without a word");
            assert!(finished.stdout.is_empty(), "{arguments:?} {finished:?}");
        }
    }
}

in_both_modes!(values_may_be_attached_or_separate_and_flags_bundled);
fn values_may_be_attached_or_separate_and_flags_bundled(mode: Mode) {
    for launch in [mode.tubes(), mode.tubes().called_beanstalkd()] {
        check_stat(&launch.clone().with(["-z", "1234"]), "max-job-size", "1234");
        check_stat(&launch.clone().with(["-z1234"]), "max-job-size", "1234");
        check_stat(&launch.clone().with(["-Vz1234"]), "max-job-size", "1234");
        check_stat(&launch.clone().with(["-VVFz", "1234"]), "max-job-size", "1234");
        check_stat(&launch.clone().with(["-s65536"]), "binlog-max-size", "65536");
        let folder = Folder::new();
        let mut attached = std::ffi::OsString::from("-b");
        attached.push(folder.path());
        check_stat(&launch.clone().with([attached.as_os_str(), OsStr::new("-f0")]), "binlog-current-index", "1");
    }
}

in_both_modes!(the_job_size_is_capped_with_a_warning);
fn the_job_size_is_capped_with_a_warning(mode: Mode) {
    let server = mode.tubes().with(["-z", "1073741825"]).start();
    assert_eq!(server.connect().stat("stats", "max-job-size"), "1073741824");
    assert!(server.stderr().contains("1073741824"), "{}", server.stderr());
    let quiet = mode.tubes().with(["-z", "1073741824"]).start();
    assert_eq!(quiet.connect().stat("stats", "max-job-size"), "1073741824");
}

in_both_modes!(c_and_n_are_taken_with_a_warning);
fn c_and_n_are_taken_with_a_warning(mode: Mode) {
    for launch in [mode.tubes(), mode.tubes().called_beanstalkd()] {
        for flag in ["-c", "-n"] {
            let server = launch.clone().with([flag]).start();
            server.check("list-tube-used\r\n", "USING default\r\n");
            assert!(server.stderr().contains(flag), "{flag}: {:?}", server.stderr());
        }
        check_stat(&launch.clone().with(["-cnz77"]), "max-job-size", "77");
    }
}

in_both_modes!(more_is_logged_with_each_v);
fn more_is_logged_with_each_v(mode: Mode) {
    let lines = |arguments: &[&str]| {
        let mut server = mode.tubes().with(arguments).start();
        server.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
        server.terminate();
        server.stderr().lines().count()
    };
    assert!(lines(&["-VVV"]) > lines(&[]), "-V changes nothing");
}

in_both_modes!(no_log_is_kept_by_default);
fn no_log_is_kept_by_default(mode: Mode) {
    let folder = Folder::new();
    for launch in [mode.tubes(), mode.tubes().called_beanstalkd()] {
        let inside = ["sh".as_ref(), "-c".as_ref(), "cd \"$0\" && exec \"$@\"".as_ref(), folder.path().as_os_str()];
        let mut server = launch.through(inside).start();
        server.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
        server.connect().check_stats("stats", &[("binlog-current-index", "0"), ("binlog-records-written", "0")]);
        server.terminate();
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

in_both_modes!(neither_environment_nor_configuration_files_are_read);
fn neither_environment_nor_configuration_files_are_read(mode: Mode) {
    let folder = Folder::new();
    std::fs::write(folder.join("tenure.toml"), "[tubes]\nmax_job_size = \"7B\"\n").expect("configuration file");
    for launch in [mode.tubes(), mode.tubes().called_beanstalkd()] {
        let inside = ["sh".as_ref(), "-c".as_ref(), "cd \"$0\" && exec \"$@\"".as_ref(), folder.path().as_os_str()];
        let launch = launch
            .through(inside)
            .environment("TENURE_TUBES__MAX_JOB_SIZE", "8B")
            .environment("TENURE_TUBES__CLOSE_ON_HTTP", "nonsense")
            .environment("TENURE_CONFIG", folder.join("tenure.toml"));
        check_stat(&launch, "max-job-size", "65535");
    }
}

in_both_modes!(a_configuration_named_before_tubes_is_read);
fn a_configuration_named_before_tubes_is_read(mode: Mode) {
    let folder = Folder::new();
    let file = folder.join("own.toml");
    std::fs::write(&file, "[tubes]\nmax_job_size = \"7B\"\n").expect("configuration file");
    let launch = mode.tubes().before_tubes([OsStr::new("-c"), file.as_os_str()]);
    check_stat(&launch, "max-job-size", "7");
    // The command line wins.
    check_stat(&launch.clone().with(["-z", "9"]), "max-job-size", "9");
    // Unknown keys are errors.
    std::fs::write(&file, "[tubes]\nmax_job_sise = \"7B\"\n").expect("configuration file");
    let finished = launch.finish();
    assert_eq!(finished.code, Some(78), "{finished:?}");
    assert!(finished.stderr.contains("max_job_size"), "the nearest key is named: {finished:?}");
}

in_both_modes!(an_unknown_user_ends_with_33);
fn an_unknown_user_ends_with_33(mode: Mode) {
    let finished = mode.tubes().with(["-u", "no-such-user-here", "-p", "0"]).finish();
    assert_eq!(finished.code, Some(33), "{finished:?}");
    assert!(finished.stderr.contains("no-such-user-here"), "{finished:?}");
    // One of a configuration is not passed over.
    let folder = Folder::new();
    let file = folder.join("own.toml");
    std::fs::write(&file, "user = \"no-such-user-there\"\n").expect("configuration file");
    let finished = mode.tubes().before_tubes([OsStr::new("-c"), file.as_os_str()]).with(["-p", "0"]).finish();
    assert_eq!(finished.code, Some(33), "{finished:?}");
    assert!(finished.stderr.contains("no-such-user-there"), "{finished:?}");
}

in_both_modes!(every_sync_mode_is_taken);
fn every_sync_mode_is_taken(mode: Mode) {
    for arguments in [&["-f", "0"][..], &["-f", "1000"], &["-f50"], &["-F"], &["-F", "-f", "5"], &["-f", "5", "-F"]] {
        let folder = Folder::new();
        let server = mode.tubes().log_in(folder.path()).with(arguments).start();
        server.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    }
}
