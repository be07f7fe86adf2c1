# Asks for one answer after the other with one library of Perl, as wait.py does:
#   perl wait.pl tiny|lwp METHOD=URL...
use strict;
use warnings;
use JSON::PP;

my ($library, @asks) = @ARGV;
$| = 1;
for my $ask (@asks) {
    my ($method, $url) = split /=/, $ask, 2;
    my $hides = $method =~ s/!$//;
    my $content = $method eq 'POST' ? '{"name":"box"}' : undef;
    my %seen;
    if ($library eq 'tiny') {
        require HTTP::Tiny;
        my %more = defined $content ? (content => $content) : ();
        my @agent = $hides ? (agent => 'any') : ();
        my $reply = HTTP::Tiny->new(timeout => 20, @agent)->request($method, $url, \%more);
        # This library reports its own failures as 599.
        %seen = $reply->{status} == 599 ? (error => $reply->{content}) : (status => 0 + $reply->{status}, body => $reply->{content});
    } else {
        require LWP::UserAgent;
        my $request = HTTP::Request->new($method, $url, [], $content);
        my @agent = $hides ? (agent => 'any') : ();
        my $reply = LWP::UserAgent->new(timeout => 20, @agent)->request($request);
        %seen = ($reply->header('Client-Warning') // '') eq 'Internal response'
            ? (error => $reply->status_line) : (status => 0 + $reply->code, body => $reply->content);
    }
    print encode_json(\%seen), "\n";
}
