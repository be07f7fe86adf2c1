# Asks for one answer after the other with Net::HTTP of Ruby, as wait.py does:
#   ruby wait.rb METHOD=URL...
require 'json'
require 'net/http'

$stdout.sync = true
ARGV.each do |ask|
  method, url = ask.split('=', 2)
  hides = method.delete_suffix!('!')
  uri = URI(url)
  begin
    Net::HTTP.start(uri.host, uri.port, read_timeout: 20, max_retries: 0) do |http|
      request = method == 'POST' ? Net::HTTP::Post.new(uri) : Net::HTTP::Get.new(uri)
      request['User-Agent'] = 'any' if hides
      request.body = '{"name":"box"}' if method == 'POST'
      reply = http.request(request)
      puts JSON.generate(status: reply.code.to_i, body: reply.body.to_s)
    end
  rescue StandardError => e
    puts JSON.generate(error: "#{e.class}: #{e.message}")
  end
end
