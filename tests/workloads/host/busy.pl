# Work of many kinds for so many seconds: the interpreter, its regular expressions, its hashes.
# Usage: perl busy.pl SECONDS
use strict;
use warnings;
use Time::HiRes qw(sleep time);

my $end = time() + $ARGV[0];
my $total = 0;
while (time() < $end) {
    my %count;
    my $text = join ' ', map { 'word-' . ($_ * 7919 % 1009) } 1 .. 4000;
    $count{$1}++ while $text =~ /word-(\d+)/g;
    my @keys = sort { $count{$a} <=> $count{$b} || $a <=> $b } keys %count;
    $total += $keys[0] + length(pack('N*', @keys)) + unpack('%32C*', $text);
    sleep 0.002;
}
print "$total\n";
