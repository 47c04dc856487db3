//! Framing and parsing: what is a line, a word, a number, a name, and what is answered to everything else.

use testing::client::readable;
use testing::process::{Server, wait_until};

use super::{Mode, in_both_modes};

const BAD_FORMAT: &str = "BAD_FORMAT\r\n";
const UNKNOWN_COMMAND: &str = "UNKNOWN_COMMAND\r\n";

/// Checks the answers to one line each, on a connection of its own: each answer must come complete and alone.
#[track_caller]
fn check_lines<L: AsRef<[u8]>>(server: &Server, lines: impl IntoIterator<Item = L>, expected: &str) {
    for line in lines {
        let line = line.as_ref();
        // A command around it shows that the answer is one line and that the next command is read intact.
        let input = [b"list-tube-used\r\n", line, b"\r\nlist-tube-used\r\n"].concat();
        server.check(input, format!("USING default\r\n{expected}USING default\r\n"));
    }
}

in_both_modes!(unknown_words_in_any_form_are_unknown_commands);
fn unknown_words_in_any_form_are_unknown_commands(mode: Mode) {
    let server = mode.server();
    check_lines(
        &server,
        [
            "",
            " ",
            "nont10knowncommand",
            "stat",
            "PUT 0 0 0 0",
            "Stats",
            "RESERVE",
            "quiT",
            " stats",
            "\tstats",
            "  ",
            "0",
        ],
        UNKNOWN_COMMAND,
    );
    check_lines(&server, ["reserv", "put\t0 0 0 0", "kick\t1", "GET / HTTP/1.1", "Host: localhost"], UNKNOWN_COMMAND);
    check_lines(&server, [&b"\xff\xfe\xfd"[..], &b"\x80put 0 0 0 0"[..], "bénin".as_bytes()], UNKNOWN_COMMAND);
}

in_both_modes!(words_with_arguments_alone_are_unknown_or_malformed);
fn words_with_arguments_alone_are_unknown_or_malformed(mode: Mode) {
    let server = mode.server();
    // Matched with their trailing space, so the bare word is no known word.
    check_lines(
        &server,
        ["put", "peek", "delete", "release", "bury", "kick", "kick-job", "touch", "use", "watch", "ignore"],
        UNKNOWN_COMMAND,
    );
    check_lines(&server, ["reserve-with-timeout", "reserve-job", "stats-job", "stats-tube", "pause-tube"], BAD_FORMAT);
}

in_both_modes!(words_with_arguments_and_only_a_space_are_malformed);
fn words_with_arguments_and_only_a_space_are_malformed(mode: Mode) {
    let server = mode.server();
    check_lines(
        &server,
        [
            "put ",
            "peek ",
            "delete ",
            "release ",
            "bury ",
            "kick ",
            "kick-job ",
            "touch ",
            "use ",
            "watch ",
            "ignore ",
            "reserve-with-timeout ",
            "reserve-job ",
            "stats-job ",
            "stats-tube ",
            "pause-tube ",
        ],
        BAD_FORMAT,
    );
}

in_both_modes!(commands_without_arguments_followed_by_anything_are_malformed);
fn commands_without_arguments_followed_by_anything_are_malformed(mode: Mode) {
    let server = mode.server();
    let words = [
        "reserve",
        "peek-ready",
        "peek-delayed",
        "peek-buried",
        "stats",
        "list-tubes",
        "list-tube-used",
        "list-tubes-watched",
        "quit",
    ];
    // `reserve-` and the like begin other words, so what follows here is a space, a letter, a digit or a control.
    for rest in [" ", " x", "X", "0", "\t", "  "] {
        check_lines(&server, words.map(|word| format!("{word}{rest}")), BAD_FORMAT);
    }
}

in_both_modes!(commands_with_arguments_glued_to_the_word_are_not_taken);
fn commands_with_arguments_glued_to_the_word_are_not_taken(mode: Mode) {
    let server = mode.server();
    check_lines(
        &server,
        ["pause-tubefoo 5", "stats-tubefoo", "stats-job5", "reserve-job5", "reserve-with-timeout5"],
        BAD_FORMAT,
    );
    check_lines(&server, ["put0 0 0 0", "usefoo", "watchfoo", "delete5", "kick5"], UNKNOWN_COMMAND);
}

in_both_modes!(a_lone_carriage_return_or_line_feed_is_an_ordinary_byte);
fn a_lone_carriage_return_or_line_feed_is_an_ordinary_byte(mode: Mode) {
    let server = mode.server();
    check_lines(&server, ["foo\nbar", "foo\rbar", "\n", "\r", "\r\r", "\n\n\n", "\nstats", "x\rx\n"], UNKNOWN_COMMAND);
    check_lines(
        &server,
        ["stats\n", "stats\r", "list-tubes\nlist-tubes", "use a\nb", "use a\rb", "peek 1\r", "kick 1\n"],
        BAD_FORMAT,
    );
}

in_both_modes!(a_lone_carriage_return_does_not_stall_the_connection);
fn a_lone_carriage_return_does_not_stall_the_connection(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.send("stats\r");
    // The half line is read before the rest comes: the server has answered another client meanwhile.
    server.check("list-tube-used\r\n", "USING default\r\n");
    client.check("x\r\n", BAD_FORMAT);
    client.send("list-tube-used\r");
    server.check("list-tube-used\r\n", "USING default\r\n");
    client.check("\n", "USING default\r\n");
    // The line feed of `a LF`, and the carriage return before it, belong to the line.
    client.check("a\n\r\r\n", UNKNOWN_COMMAND);
}

in_both_modes!(a_nul_in_a_line_is_malformed);
fn a_nul_in_a_line_is_malformed(mode: Mode) {
    let server = mode.server();
    check_lines(
        &server,
        [
            "\0",
            "stats\0",
            "\0stats",
            "foo\0bar",
            "use a\0b",
            "peek 1\0",
            "put 0 0 0\0 1",
            "watch \0",
            "reserve\0",
            "list-tubes\0",
            "pause-tube default 0\0",
            "quit\0",
        ],
        BAD_FORMAT,
    );
}

in_both_modes!(the_longest_legal_command_is_read);
fn the_longest_legal_command_is_read(mode: Mode) {
    // pause-tube, a name of 200 bytes and a number of ten digits: 224 bytes with CR LF.
    let name = "x".repeat(200);
    let line = format!("pause-tube {name} 4294967295\r\n");
    assert_eq!(line.len(), 224);
    mode.server().check(format!("use {name}\r\n{line}"), format!("USING {name}\r\nPAUSED\r\n"));
}

in_both_modes!(a_line_of_224_bytes_is_read_and_one_of_225_is_not);
fn a_line_of_224_bytes_is_read_and_one_of_225_is_not(mode: Mode) {
    let server = mode.server();
    check_lines(&server, ["x".repeat(222)], UNKNOWN_COMMAND);
    check_lines(&server, ["x".repeat(223)], BAD_FORMAT);
    // Legal but for its length.
    check_lines(&server, [format!("peek {}1", "0".repeat(216))], "NOT_FOUND\r\n");
    check_lines(&server, [format!("peek {}1", "0".repeat(217))], BAD_FORMAT);
    check_lines(&server, [format!("peek {}1", " ".repeat(216))], "NOT_FOUND\r\n");
    check_lines(&server, [format!("peek {}1", " ".repeat(217))], BAD_FORMAT);
}

in_both_modes!(a_longer_line_of_any_length_gets_one_answer_and_the_next_command_is_read_intact);
fn a_longer_line_of_any_length_gets_one_answer_and_the_next_command_is_read_intact(mode: Mode) {
    let server = mode.server();
    for length in [223, 224, 225, 226, 447, 448, 449, 500, 1000, 4096, 65_536, 1_000_000] {
        check_lines(&server, [vec![b'x'; length]], BAD_FORMAT);
        // Neither a lone CR nor a lone LF ends it.
        check_lines(&server, [vec![b'\r'; length]], BAD_FORMAT);
        check_lines(&server, [vec![b'\n'; length]], BAD_FORMAT);
        check_lines(&server, [b"a\r".repeat(length / 2 + 1), b"\na".repeat(length / 2 + 1)], BAD_FORMAT);
    }
}

in_both_modes!(a_500_byte_line_is_followed_by_a_put_that_works);
fn a_500_byte_line_is_followed_by_a_put_that_works(mode: Mode) {
    let input = format!("{}\r\nput 0 0 1 1\r\nx\r\n", "m".repeat(498));
    mode.server().check(input, "BAD_FORMAT\r\nINSERTED 1\r\n");
}

in_both_modes!(a_long_line_may_be_split_anywhere);
fn a_long_line_may_be_split_anywhere(mode: Mode) {
    let server = mode.server();
    let line = "y".repeat(300);
    // Every split of the line and its end, 224 bytes and CR | LF included.
    for at in 1..line.len() + 2 {
        let whole = format!("{line}\r\nlist-tube-used\r\n");
        let mut client = server.connect();
        client.send(&whole[..at]);
        client.check(&whole[at..], "BAD_FORMAT\r\nUSING default\r\n");
    }
    // In very small and in very many segments.
    let mut client = server.connect();
    for _ in 0..2000 {
        client.send("z");
    }
    client.check("\r\nlist-tube-used\r\n", "BAD_FORMAT\r\nUSING default\r\n");
}

in_both_modes!(nothing_is_answered_before_a_long_line_ends);
fn nothing_is_answered_before_a_long_line_ends(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.send("x".repeat(1000));
    server.check("list-tube-used\r\n", "USING default\r\n");
    client.expect_silence(std::time::Duration::from_millis(100));
    client.check("\r\n", BAD_FORMAT);
    client.check("list-tube-used\r\n", "USING default\r\n");
}

in_both_modes!(negative_signed_garbage_and_missing_numbers_are_malformed);
fn negative_signed_garbage_and_missing_numbers_are_malformed(mode: Mode) {
    let server = mode.server();
    let numbers = ["-1", "+1", "a", "1a", "0x1", "1.0", "1e3", "", "\t1", "1\t", "0 1", "1 "];
    for number in numbers {
        let commands = [
            "peek",
            "delete",
            "touch",
            "kick-job",
            "stats-job",
            "reserve-job",
            "kick",
            "reserve-with-timeout",
            "pause-tube default",
        ];
        check_lines(&server, commands.map(|command| format!("{command} {number}")), BAD_FORMAT);
    }
    check_lines(
        &server,
        ["reserve-with-timeout 0abc", "kick -1", "kick 5abc", "pause-tube default -1", "pause-tube default"],
        BAD_FORMAT,
    );
}

in_both_modes!(each_number_of_release_bury_and_put_is_checked);
fn each_number_of_release_bury_and_put_is_checked(mode: Mode) {
    let server = mode.server();
    for bad in ["-1", "+1", "a", "1a", "4294967296", "99999999999999999999999", "\t1"] {
        check_lines(
            &server,
            [
                format!("put {bad} 0 1 1"),
                format!("put 0 {bad} 1 1"),
                format!("put 0 0 {bad} 1"),
                format!("put 0 0 1 {bad}"),
                format!("release 1 {bad} 0"),
                format!("release 1 0 {bad}"),
                format!("bury 1 {bad}"),
                format!("kick {bad}"),
            ],
            BAD_FORMAT,
        );
    }
    for bad in ["-1", "+1", "a", "1a", "18446744073709551616", "99999999999999999999999", "\t1"] {
        check_lines(&server, [format!("release {bad} 0 0"), format!("bury {bad} 0")], BAD_FORMAT);
    }
    check_lines(
        &server,
        [
            "put 0",
            "put 0 0",
            "put 0 0 1",
            "put 0 0 1 ",
            "put 0 0 1 1 ",
            "put 0 0 1 1 1",
            "put 0 0 1 1x",
            "release 1",
            "release 1 0",
            "release 1 0 ",
            "release 1 0 0 ",
            "release 1 0 0 0",
            "bury 1",
            "bury 1 ",
            "bury 1 0 ",
            "bury 1 0 0",
            "peek 1 1",
            "delete 1 1",
            "touch 1 1",
            "kick 1 1",
            "kick-job 1 1",
            "stats-job 1 1",
            "reserve-job 1 1",
            "reserve-with-timeout 1 1",
            "pause-tube default 1 1",
            "pause-tube default 1 ",
            "peek 1 ",
        ],
        BAD_FORMAT,
    );
}

in_both_modes!(ids_end_at_two_to_the_64);
fn ids_end_at_two_to_the_64(mode: Mode) {
    let server = mode.server();
    let commands = ["peek", "delete", "touch", "kick-job", "stats-job", "reserve-job"];
    check_lines(&server, commands.map(|command| format!("{command} 18446744073709551615")), "NOT_FOUND\r\n");
    check_lines(&server, commands.map(|command| format!("{command} 18446744073709551616")), BAD_FORMAT);
    check_lines(&server, commands.map(|command| format!("{command} 184467440737095516150")), BAD_FORMAT);
    check_lines(&server, ["release 18446744073709551615 0 0", "bury 18446744073709551615 0"], "NOT_FOUND\r\n");
    check_lines(&server, ["release 18446744073709551616 0 0", "bury 18446744073709551616 0"], BAD_FORMAT);
    check_lines(&server, commands.map(|command| format!("{command} 0")), "NOT_FOUND\r\n");
}

in_both_modes!(numbers_end_at_two_to_the_32_and_timeouts_at_two_to_the_31);
fn numbers_end_at_two_to_the_32_and_timeouts_at_two_to_the_31(mode: Mode) {
    let server = mode.server();
    check_lines(&server, ["kick 4294967295"], "KICKED 0\r\n");
    check_lines(&server, ["pause-tube default 4294967295"], "PAUSED\r\n");
    check_lines(
        &server,
        ["kick 4294967296", "pause-tube default 4294967296", "reserve-with-timeout 4294967296"],
        BAD_FORMAT,
    );
    check_lines(&server, ["reserve-with-timeout 2147483648", "reserve-with-timeout 4294967295"], BAD_FORMAT);
    // The largest one waits; the end of input makes it give up.
    server.check("reserve-with-timeout 2147483647\r\n", "TIMED_OUT\r\n");
}

in_both_modes!(numbers_may_have_leading_zeros_and_any_number_of_leading_spaces);
fn numbers_may_have_leading_zeros_and_any_number_of_leading_spaces(mode: Mode) {
    let server = mode.server();
    check_lines(
        &server,
        ["peek 0000000000000000000000000001", "delete     1", "stats-job  0007", "touch 00"],
        "NOT_FOUND\r\n",
    );
    check_lines(&server, ["kick 00000000004294967295", "kick     0"], "KICKED 0\r\n");
    server.check(
        "put    0000    00   00000000000000060     01\r\na\r\nreserve-with-timeout   0\r\nrelease   01   02   00\r\n\
         pause-tube default    000\r\n",
        "INSERTED 1\r\nRESERVED 1 1\r\na\r\nRELEASED\r\nPAUSED\r\n",
    );
}

in_both_modes!(names_have_1_to_200_bytes_of_the_listed_characters);
fn names_have_1_to_200_bytes_of_the_listed_characters(mode: Mode) {
    let server = mode.server();
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/;.$_()-";
    for name in letters.split("").filter(|letter| !letter.is_empty() && *letter != "-") {
        server.check(format!("use {name}\r\nwatch {name}\r\n"), format!("USING {name}\r\nWATCHING 2\r\n"));
    }
    let long = "n".repeat(200);
    for name in [letters, "a-", "a-b", "_", "under_score", "0", "$(;./)", &long] {
        server.check(
            format!("use {name}\r\nwatch {name}\r\nignore {name}\r\npause-tube {name} 0\r\n"),
            format!("USING {name}\r\nWATCHING 2\r\nWATCHING 1\r\nPAUSED\r\n"),
        );
    }
}

in_both_modes!(other_names_are_malformed_in_every_command_that_takes_one);
fn other_names_are_malformed_in_every_command_that_takes_one(mode: Mode) {
    let server = mode.server();
    let long = "n".repeat(201);
    let mut bad: Vec<String> =
        ["-", "-a", "", " ", " a", "a b", "a ", "a\t", "a!", "a\"", "é", "a,b", "a:b", "a*"].map(String::from).to_vec();
    bad.push(long);
    for name in bad {
        check_lines(&server, ["use", "watch", "ignore", "stats-tube"].map(|word| format!("{word} {name}")), BAD_FORMAT);
        // Behind a legal name any number of spaces may stand before the number.
        if name != "a " {
            check_lines(&server, [format!("pause-tube {name} 1")], BAD_FORMAT);
        }
    }
    // Every byte outside of the list, the end of line and NUL aside.
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-+/;.$_()".contains(&byte);
    for byte in (1..=255u8).filter(|byte| !legal(*byte)) {
        let line = [b"use a", &[byte][..], b"b\r\n"].concat();
        server.check(line, BAD_FORMAT);
    }
}

in_both_modes!(a_name_of_200_bytes_is_kept_whole_and_one_of_201_is_refused);
fn a_name_of_200_bytes_is_kept_whole_and_one_of_201_is_refused(mode: Mode) {
    let server = mode.server();
    let name = "t".repeat(200);
    server.check(
        format!("use {name}\r\nput 0 0 1 0\r\n\r\nlist-tube-used\r\nwatch {name}x\r\n"),
        format!("USING {name}\r\nINSERTED 1\r\nUSING {name}\r\nBAD_FORMAT\r\n"),
    );
    let text = server.connect().text(&format!("stats-tube {name}"));
    assert!(text.starts_with(&format!("---\nname: \"{name}\"\n")), "{text}");
}

in_both_modes!(two_commands_may_come_in_one_packet);
fn two_commands_may_come_in_one_packet(mode: Mode) {
    mode.server().check("use a\r\nuse b\r\n", "USING a\r\nUSING b\r\n");
}

/// Commands of every kind and the answers to them, with `#1` for the id of the first job, and so on.
const SCRIPT: &[(&str, &str)] = &[
    ("use work\r\n", "USING work\r\n"),
    ("put 5 0 60 5\r\nhello\r\n", "INSERTED #1\r\n"),
    ("put 1 0 60 12\r\nput 0 0 0 1\r\r\n", "INSERTED #2\r\n"),
    ("put 3 9999 60 0\r\n\r\n", "INSERTED #3\r\n"),
    ("put 0 0 60 3\r\nabcXY\r\n", "EXPECTED_CRLF\r\nUNKNOWN_COMMAND\r\n"),
    ("watch work\r\n", "WATCHING 2\r\n"),
    ("ignore default\r\n", "WATCHING 1\r\n"),
    ("ignore work\r\n", "NOT_IGNORED\r\n"),
    ("reserve\r\n", "RESERVED #2 12\r\nput 0 0 0 1\r\r\n"),
    ("reserve-with-timeout 0\r\n", "RESERVED #1 5\r\nhello\r\n"),
    ("reserve-with-timeout 0\r\n", "TIMED_OUT\r\n"),
    ("bury #2 7\r\n", "BURIED\r\n"),
    ("touch #1\r\n", "TOUCHED\r\n"),
    ("release #1 9 0\r\n", "RELEASED\r\n"),
    ("peek-ready\r\n", "FOUND #1 5\r\nhello\r\n"),
    ("peek-delayed\r\n", "FOUND #3 0\r\n\r\n"),
    ("peek-buried\r\n", "FOUND #2 12\r\nput 0 0 0 1\r\r\n"),
    ("peek 99999999\r\n", "NOT_FOUND\r\n"),
    ("kick 10\r\n", "KICKED 1\r\n"),
    ("kick-job #3\r\n", "KICKED\r\n"),
    ("reserve-job #3\r\n", "RESERVED #3 0\r\n\r\n"),
    ("delete #3\r\n", "DELETED\r\n"),
    ("list-tubes-watched\r\n", "OK 11\r\n---\n- work\n\r\n"),
    ("list-tubes\r\n", "OK 21\r\n---\n- default\n- work\n\r\n"),
    ("list-tube-used\r\n", "USING work\r\n"),
    ("pause-tube work 0\r\n", "PAUSED\r\n"),
    ("stats-tube nowhere\r\n", "NOT_FOUND\r\n"),
    ("foo\r\n", "UNKNOWN_COMMAND\r\n"),
    ("put 1 2 3 x\r\n", "BAD_FORMAT\r\n"),
    // Leaves nothing behind.
    ("delete #1\r\ndelete #2\r\n", "DELETED\r\nDELETED\r\n"),
];

/// The script as it is sent, and as it must be answered, after `before` jobs were put.
fn script(before: usize) -> Vec<(String, String)> {
    let with_ids = |text: &str| {
        (1..=3)
            .fold(text.to_owned(), |text, number| text.replace(&format!("#{number}"), &(before + number).to_string()))
    };
    SCRIPT.iter().map(|(input, output)| (with_ids(input), with_ids(output))).collect()
}

/// As [`script`], in one piece.
fn whole_script(before: usize) -> (Vec<u8>, String) {
    let (input, output): (Vec<String>, Vec<String>) = script(before).into_iter().unzip();
    (input.concat().into_bytes(), readable(output.concat().as_bytes()))
}

in_both_modes!(the_script_is_answered_command_by_command);
fn the_script_is_answered_command_by_command(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    for (input, output) in script(0) {
        client.check(input, output);
    }
    client.half_close();
    client.expect_end();
}

in_both_modes!(the_script_is_answered_alike_in_one_packet);
fn the_script_is_answered_alike_in_one_packet(mode: Mode) {
    let (input, output) = whole_script(0);
    assert_eq!(readable(&mode.server().play(input)), output);
}

in_both_modes!(the_script_is_answered_alike_byte_by_byte);
fn the_script_is_answered_alike_byte_by_byte(mode: Mode) {
    let (input, output) = whole_script(0);
    let server = mode.server();
    let mut client = server.connect();
    for byte in input {
        client.send([byte]);
    }
    client.half_close();
    assert_eq!(readable(&client.rest()), output);
}

in_both_modes!(the_script_is_answered_alike_when_split_at_every_byte);
fn the_script_is_answered_alike_when_split_at_every_byte(mode: Mode) {
    let server = mode.server();
    let mut witness = server.connect();
    for round in 0.. {
        // Each round puts three jobs.
        let (input, output) = whole_script(3 * round);
        let at = round + 1;
        if at >= input.len() {
            break;
        }
        let mut client = server.connect();
        client.send(&input[..at]);
        // Another connection is served in between, so the first part has been read before the second is sent.
        witness.check("list-tube-used\r\n", "USING default\r\n");
        client.send(&input[at..]);
        client.half_close();
        assert_eq!(readable(&client.rest()), output, "split at {at}");
        // The tube of the script goes with its connection; of several processes not all hear of it at once.
        wait_until("the connection is gone", || {
            witness.stat("stats", "current-connections") == "1" && witness.stat("stats", "current-tubes") == "1"
        });
    }
}

in_both_modes!(thousands_of_pipelined_commands_are_answered_in_order);
fn thousands_of_pipelined_commands_are_answered_in_order(mode: Mode) {
    let server = mode.server();
    let mut input = Vec::new();
    let mut output = Vec::new();
    for number in 1..=20_000 {
        input.extend(format!("use t{number}\r\npeek-ready\r\nput 0 0 60 6\r\n{number:06}\r\npeek-ready\r\n").bytes());
        output.extend(
            format!("USING t{number}\r\nNOT_FOUND\r\nINSERTED {number}\r\nFOUND {number} 6\r\n{number:06}\r\n").bytes(),
        );
    }
    let got = server.play(input);
    assert!(got == output, "got {}", readable(&got));
}

in_both_modes!(only_quit_closes_the_connection);
fn only_quit_closes_the_connection(mode: Mode) {
    let server = mode.server();
    // What follows quit is not executed.
    server.check("put 0 0 1 1\r\na\r\nquit\r\nput 0 0 1 1\r\nb\r\n", "INSERTED 1\r\n");
    assert_eq!(server.connect().stat("stats", "total-jobs"), "1");
    let mut client = server.connect();
    client.send("quit\r\n");
    client.expect_end();
    // It closes although the client does not end its side, also behind commands that are not answered yet.
    for (before, answer) in [
        ("stats-job 1000\r\n", "NOT_FOUND\r\n"),
        ("use a\r\nput 0 0 1 1\r\na\r\n", "USING a\r\nINSERTED 2\r\n"),
        ("watch b\r\nignore default\r\nreserve-with-timeout 0\r\n", "WATCHING 2\r\nWATCHING 1\r\nTIMED_OUT\r\n"),
        ("list-tube-used\r\n", "USING default\r\n"),
    ] {
        let mut client = server.connect();
        client.send(format!("{before}quit\r\n"));
        client.expect(answer);
        client.expect_end();
    }
}

in_both_modes!(an_http_request_line_as_the_first_line_closes_without_a_reply);
fn an_http_request_line_as_the_first_line_closes_without_a_reply(mode: Mode) {
    let server = mode.server();
    let long = format!("GET /{} HTTP/1.1", "a".repeat(4000));
    let lines = [
        "GET / HTTP/1.1",
        "POST /x?y=put+0 HTTP/1.0",
        "OPTIONS * HTTP/1.1",
        "CONNECT localhost:11300 HTTP/1.1",
        "PRI * HTTP/2.0",
        "get / HTTP/1.1",
        "put / HTTP/1.1",
        "delete /1 HTTP/1.1",
        &long,
    ];
    for line in lines {
        let input = format!("{line}\r\nHost: localhost\r\nContent-Length: 20\r\n\r\nput 0 0 1 1\r\na\r\n");
        server.check(&input, "");
        // Also when it comes in two parts, and without waiting for the end of input.
        let mut client = server.connect();
        client.send(&input[..3]);
        server.check("list-tube-used\r\n", "USING default\r\n");
        client.send(&input[3..]);
        client.expect_end();
    }
    server.connect().check_stats("stats", &[("total-jobs", "0"), ("cmd-put", "0")]);
}

in_both_modes!(an_http_request_line_as_a_later_line_is_an_unknown_command);
fn an_http_request_line_as_a_later_line_is_an_unknown_command(mode: Mode) {
    mode.server().check(
        "list-tube-used\r\nGET / HTTP/1.1\r\nput 0 0 1 1\r\na\r\n",
        "USING default\r\nUNKNOWN_COMMAND\r\nINSERTED 1\r\n",
    );
    mode.server()
        .check("\r\nPOST / HTTP/1.1\r\nput 0 0 1 1\r\na\r\n", "UNKNOWN_COMMAND\r\nUNKNOWN_COMMAND\r\nINSERTED 1\r\n");
}

in_both_modes!(first_lines_that_only_resemble_http_are_answered);
fn first_lines_that_only_resemble_http_are_answered(mode: Mode) {
    for line in ["GET /", "GET / HTTP", "GET / http/1.1", "GET/ HTTP/1.1", "GET  HTTP/1.1", "HTTP/1.1 200 OK"] {
        mode.server().check(format!("{line}\r\nlist-tube-used\r\n"), "UNKNOWN_COMMAND\r\nUSING default\r\n");
    }
}

in_both_modes!(closing_on_http_can_be_turned_off_by_the_configuration);
fn closing_on_http_can_be_turned_off_by_the_configuration(mode: Mode) {
    let folder = testing::process::Folder::new();
    let configuration = folder.join("tenure.toml");
    std::fs::write(&configuration, "[tubes]\nclose_on_http = false\n").expect("configuration file");
    let server = mode.tubes().before_tubes(["-c".as_ref(), configuration.as_os_str()]).start();
    server.check(
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\nput 0 0 1 1\r\na\r\n",
        "UNKNOWN_COMMAND\r\nUNKNOWN_COMMAND\r\nUNKNOWN_COMMAND\r\nINSERTED 1\r\n",
    );
}
