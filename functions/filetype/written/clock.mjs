import { createServer } from 'node:http';

const zones = new Map([
  ['berlin', 'Europe/Berlin'],
  ['tokyo', 'Asia/Tokyo'],
  ['lima', 'America/Lima'],
]);

const server = createServer((request, response) => {
  const city = new URL(request.url, 'http://localhost').pathname.slice(1);
  const zone = zones.get(city);
  if (zone === undefined) {
    response.writeHead(404, { 'content-type': 'text/plain' });
    response.end(`expected one of ${[...zones.keys()].join(', ')}, got ${city}\n`);
    return;
  }
  const format = new Intl.DateTimeFormat('en', { timeZone: zone, timeStyle: 'long' });
  response.end(format.format(new Date()) + '\n');
});

server.listen(Number(process.env.PORT || 3000), () => {
  const { port } = server.address();
  console.log(`clock on port ${port}`);
});
