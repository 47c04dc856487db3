<?php
/**
 * The whole life cycle with Pheanstalk: php pheanstalk.php HOST PORT
 *
 * Debian's package php-pda-pheanstalk 4.0.4 has the library only, no test suite. This version of the library has
 * neither reserve-job nor a type for one, so that command is left to the others.
 */

declare(strict_types=1);

use Pheanstalk\Exception\ClientException;
use Pheanstalk\Exception\DeadlineSoonException;
use Pheanstalk\Exception\JobNotFoundException;
use Pheanstalk\Exception\JobTooBigException;
use Pheanstalk\Exception\ServerDrainingException;
use Pheanstalk\Exception\ServerException;
use Pheanstalk\Job;
use Pheanstalk\JobId;
use Pheanstalk\Pheanstalk;

require '/usr/share/php/Pheanstalk/autoload.php';

error_reporting(E_ALL & ~E_DEPRECATED);
set_error_handler(static function (int $level, string $text, string $file, int $line): bool {
    // The library is older than some of the language's warnings; ours are errors.
    if (($level & (E_DEPRECATED | E_USER_DEPRECATED)) === 0) {
        throw new ErrorException($text, 0, $level, $file, $line);
    }
    return true;
});

$count = 0;

function same($got, $expected, string $what): void
{
    global $count;
    $count++;
    if ($got !== $expected) {
        throw new RuntimeException("$what: expected " . var_export($expected, true) . ', but got ' . var_export($got, true));
    }
}

/** One check: the call throws an exception of this class. */
function refused(string $class, string $what, callable $call): void
{
    global $count;
    $count++;
    try {
        $result = $call();
    } catch (Throwable $error) {
        if ($error instanceof $class) {
            return;
        }
        throw $error;
    }
    throw new RuntimeException("$what: expected $class, but it returned " . var_export($result, true));
}

/** Not early, and at most half a second late: ten times what the server promises on an idle machine. */
function took(float $start, float $seconds, string $what): void
{
    $elapsed = (hrtime(true) / 1e9) - $start;
    same($elapsed >= $seconds && $elapsed <= $seconds + 0.5, true, "$what took $elapsed s");
}

function connect(): Pheanstalk
{
    global $argv;
    return Pheanstalk::create($argv[1], (int) $argv[2]);
}

[$producer, $worker] = [connect(), connect()];

// Tubes.
$producer->useTube('work');
$worker->watchOnly('work');
same($producer->listTubeUsed(true), 'work', 'used');
same($worker->listTubesWatched(true), ['work'], 'watched');
same($producer->listTubes(), ['default', 'work'], 'tubes');
$worker->watch('other');
same($producer->listTubes(), ['default', 'work', 'other'], 'tubes');
$worker->ignore('other');
refused(ServerException::class, 'ignore of the last', fn () => $worker->ignore('work'));
refused(ServerException::class, 'stats of no tube', fn () => $worker->statsTube('nowhere'));
refused(ServerException::class, 'pause of no tube', fn () => $worker->pauseTube('nowhere', 1));

// Put and peek.
$one = $producer->put('eins', 20, 0, 90);
$two = $producer->put('zwei ✓', 10, 0, 120);
$three = $producer->put('drei', 10, 1000, 60);
same($one->getId() < $two->getId() && $two->getId() < $three->getId(), true, 'ids rise');
same($producer->peek($one)->getData(), 'eins', 'peek');
same($producer->peekReady()->getId(), $two->getId(), 'peek-ready');
same($producer->peekReady()->getData(), 'zwei ✓', 'body of peek-ready');
same($producer->peekDelayed()->getId(), $three->getId(), 'peek-delayed');
same($producer->peekBuried(), null, 'peek-buried of none');
refused(JobNotFoundException::class, 'peek of none', fn () => $producer->peek(new JobId(999999999)));
$stats = $producer->statsJob($three);
same([$stats['id'], trim($stats['tube'], '"'), $stats['state'], $stats['pri'], $stats['delay'], $stats['ttr'], $stats['reserves']],
    [(string) $three->getId(), 'work', 'delayed', '10', '1000', '60', '0'], 'stats-job');
same($producer->statsTube('work')['current-jobs-ready'], '2', 'stats-tube');

// Reserve, touch, release, bury, kick, delete.
$job = $worker->reserve();
same([$job->getId(), $job->getData()], [$two->getId(), 'zwei ✓'], 'reserve');
$worker->touch($job);
refused(JobNotFoundException::class, 'touch by another', fn () => $producer->touch($job));
refused(JobNotFoundException::class, 'delete by another', fn () => $producer->delete($job));
$worker->release($job, 30);
$job = $worker->reserveWithTimeout(0);
same($job->getId(), $one->getId(), 'reserve after release');
$worker->bury($job, 5);
same($producer->peekBuried()->getId(), $one->getId(), 'peek-buried');
same($producer->kick(10), 1, 'kick of the buried');
same($producer->kick(10), 1, 'kick of the delayed');
same($producer->kick(10), 0, 'kick of none');
$worker->release($worker->reserveWithTimeout(0), 20, 1000);
$producer->kickJob($one);
refused(JobNotFoundException::class, 'kick-job of a ready job', fn () => $producer->kickJob($one));
$order = [];
while (($job = $worker->reserveWithTimeout(0)) !== null) {
    $order[] = $job->getId();
}
same($order, [$three->getId(), $one->getId(), $two->getId()], 'order');
foreach ([$one, $two, $three] as $job) {
    $worker->delete($job);
}
refused(JobNotFoundException::class, 'delete again', fn () => $worker->delete($one));

// Timeouts, pause, deadline, close.
$start = (hrtime(true) / 1e9);
same($worker->reserveWithTimeout(1), null, 'timeout');
took($start, 1, 'timeout of 1');
$short = $producer->put('short', 0, 0, 1);
$start = (hrtime(true) / 1e9);
$producer->pauseTube('work', 1);
same($worker->reserveWithTimeout(0), null, 'reserve of a paused tube');
same($worker->reserve()->getId(), $short->getId(), 'reserve after the pause');
took($start, 1, 'pause of 1');
refused(DeadlineSoonException::class, 'ttr of 1', fn () => $worker->reserveWithTimeout(10));
$other = connect();
$other->watchOnly('work');
same($other->reserveWithTimeout(10)->getId(), $short->getId(), 'reserve of the expired');
same($other->statsJob($short)['timeouts'], '1', 'timeouts');
refused(JobNotFoundException::class, 'delete of the expired', fn () => $worker->delete($short));
unset($other);
gc_collect_cycles();
$job = $worker->reserveWithTimeout(10);
same($job->getId(), $short->getId(), 'reserve of what a close released');
$worker->delete($job);
$producer->put('paused');
$producer->pauseTube('work', 1000);
same($worker->reserveWithTimeout(0), null, 'reserve of a paused tube');
$producer->resumeTube('work');
$worker->delete($worker->reserveWithTimeout(0));

// Bodies.
$producer->useTube('raw');
$worker->watchOnly('raw');
foreach (['', implode('', array_map('chr', range(0, 255))), str_repeat("\r\n", 100), str_repeat('x', 65535)] as $body) {
    $last = $producer->put($body);
    $job = $worker->reserveWithTimeout(0);
    same([$job->getId(), $job->getData()], [$last->getId(), $body], 'binary body');
    $worker->delete($job);
}
refused(JobTooBigException::class, 'too big', fn () => $producer->put(str_repeat('x', 65536)));
same($producer->listTubeUsed(true), 'raw', 'connection after too big');
$there = $producer->withUsedTube('elsewhere', fn (Pheanstalk $client) => $client->put('there'));
same($there->getId() > $last->getId(), true, 'the id of a put elsewhere rises');
same($producer->peek($there)->getData(), 'there', 'put elsewhere');

// Statistics and drain.
$stats = $producer->stats();
same(count((array) $stats), 51, 'number of keys');
same($stats['total-jobs'], '10', 'total-jobs');
same($stats['draining'], 'false', 'draining');
same(preg_match('/^[0-9a-f]{16}$/', $stats['id']), 1, 'id');
exec('kill -USR1 ' . (int) $stats['pid'], $output, $status);
same($status, 0, 'signal');
$deadline = (hrtime(true) / 1e9) + 60;
while ($producer->stats()['draining'] !== 'true') {
    same((hrtime(true) / 1e9) < $deadline, true, 'draining');
}
refused(ServerDrainingException::class, 'put while draining', fn () => $producer->put('late'));

echo "pheanstalk: $count checks passed\n";
